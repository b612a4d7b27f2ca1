package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// authority signs certificates that live as long as a test does, at most a day.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  crypto.Signer
	// addresses are in every certificate, beside those of loopback.
	addresses []net.IP
}

// pair is a certificate and its key as files.
type pair struct{ cert, key string }

func newAuthority(dir, name string) (*authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := certificate(pkix.Name{CommonName: name})
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	a := &authority{dir: dir, cert: cert, key: key}
	return a, writePEM(a.file(), "CERTIFICATE", der)
}

// file is the authority's own certificate.
func (a *authority) file() string { return filepath.Join(a.dir, "ca.crt") }

// issue makes a certificate for servers on loopback and for clients of that name and groups.
func (a *authority) issue(file, name string, groups ...string) (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, err
	}
	template := certificate(pkix.Name{CommonName: name, Organization: groups})
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	template.IPAddresses = append([]net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, a.addresses...)
	template.DNSNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return pair{}, err
	}
	p := pair{cert: filepath.Join(a.dir, file+".crt"), key: filepath.Join(a.dir, file+".key")}
	if err := writePEM(p.cert, "CERTIFICATE", der); err != nil {
		return pair{}, err
	}
	return p, writeKey(p.key, key)
}

func certificate(subject pkix.Name) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		NotBefore:    time.Now().Add(-time.Minute),
		NotAfter:     time.Now().Add(24 * time.Hour),
	}
}

func writeKey(file string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(file, "PRIVATE KEY", der)
}

func writePEM(file, kind string, der []byte) error {
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// writeKubeconfig writes one with everything in it, so that it can be handed around.
func writeKubeconfig(file, cluster, server, ca string, client pair) error {
	read := func(name string) string {
		data, err := os.ReadFile(name)
		if err != nil {
			return ""
		}
		return base64.StdEncoding.EncodeToString(data)
	}
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: %[1]s
clusters:
- name: %[1]s
  cluster:
    server: %[2]s
    certificate-authority-data: %[3]s
users:
- name: %[1]s
  user:
    client-certificate-data: %[4]s
    client-key-data: %[5]s
contexts:
- name: %[1]s
  context: {cluster: %[1]s, user: %[1]s}
`, cluster, server, read(ca), read(client.cert), read(client.key))
	return os.WriteFile(file, []byte(text), 0o600)
}
