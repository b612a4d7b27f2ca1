package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	_ "embed"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

//go:embed stages/stages.yaml
var stages []byte

// cluster is an API server with its controllers, on an etcd that it shares with others.
type cluster struct {
	name       string
	server     string
	kubeconfig string
	ca         string
	// kubelets is what the API server shows to kubelets.
	kubelets  pair
	authority *authority
	admin     *http.Client
	// processes are in the order in which they start; the first is the API server.
	processes []*process
}

// newCluster writes everything that a cluster needs and names its programs; nothing runs yet.
func newCluster(u *up, name string) (*cluster, error) {
	dir := filepath.Join(u.dir, name)
	authority, err := newAuthority(dir, name)
	if err != nil {
		return nil, err
	}
	if u.address != "" {
		// The second one is that of the Service "kubernetes".
		authority.addresses = []net.IP{net.ParseIP(u.address), net.IPv4(10, 96, 0, 1)}
	}
	ports, err := freePorts(4)
	if err != nil {
		return nil, err
	}
	c := &cluster{
		name:       name,
		server:     fmt.Sprintf("https://127.0.0.1:%d", ports[0]),
		kubeconfig: filepath.Join(u.dir, name+".kubeconfig"),
		ca:         authority.file(),
		authority:  authority,
	}
	serving, err := authority.issue("apiserver", "kube-apiserver")
	if err != nil {
		return nil, err
	}
	// What signs service account tokens, and the certificate by which they are verified.
	tokens, err := authority.issue("tokens", "tokens")
	if err != nil {
		return nil, err
	}
	if c.kubelets, err = authority.issue("kubelet-client", "kube-apiserver", "system:masters"); err != nil {
		return nil, err
	}
	users := map[string]string{}
	for user, group := range map[string]string{
		"admin": "system:masters", "kwok": "system:masters", "cert-manager": "system:masters",
		"system:kube-controller-manager": "", "system:kube-scheduler": "",
	} {
		client, err := authority.issue("client-"+user, user, group)
		if err != nil {
			return nil, err
		}
		file := filepath.Join(dir, user+".kubeconfig")
		if user == "admin" {
			file = c.kubeconfig
			if c.admin, err = httpClient(authority.file(), client); err != nil {
				return nil, err
			}
		}
		if err := writeKubeconfig(file, name, c.server, authority.file(), client); err != nil {
			return nil, err
		}
		users[user] = file
	}
	stageFile := filepath.Join(dir, "stages.yaml")
	schedulerFile := filepath.Join(dir, "scheduler.yaml")
	for file, data := range map[string][]byte{
		stageFile:     stages,
		schedulerFile: []byte(fmt.Sprintf(schedulerConfig, users["system:kube-scheduler"])),
	} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			return nil, err
		}
	}
	admissionFile, err := writeAdmission(filepath.Join(dir, "webhooks"), name, c)
	if err != nil {
		return nil, err
	}
	c.processes = []*process{
		u.process(name, "kube-apiserver",
			"--etcd-servers="+etcdClients, "--etcd-prefix=/"+name,
			"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", ports[0]),
			// Endpoints can't hold loopback addresses, so the Service "kubernetes" has none.
			"--endpoint-reconciler-type=none",
			"--tls-cert-file="+serving.cert, "--tls-private-key-file="+serving.key,
			"--client-ca-file="+authority.file(),
			"--service-account-issuer=https://kubernetes.default.svc",
			"--service-account-key-file="+tokens.cert, "--service-account-signing-key-file="+tokens.key,
			"--service-cluster-ip-range=10.96.0.0/16",
			"--admission-control-config-file="+admissionFile,
			"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
			"--allow-privileged=true", "--profiling=false",
			// What comes by an older version of the API is held to the same.
			// The certificates' versions are for the feature below.
			"--runtime-config=resource.k8s.io/v1beta2=true,certificates.k8s.io/v1alpha1=true,certificates.k8s.io/v1beta1=true",
			// Off by default: the API server would drop a Pod's podCertificate, and nobody could see that it is refused.
			"--feature-gates=PodCertificateRequest=true",
			// The first seconds of a test shouldn't go into waiting for a webhook's connection to be given up.
			"--shutdown-delay-duration=0s",
		),
		u.process(name, "kube-controller-manager",
			"--kubeconfig="+users["system:kube-controller-manager"], "--leader-elect=false",
			"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", ports[1]),
			"--tls-cert-file="+serving.cert, "--tls-private-key-file="+serving.key,
			"--service-account-private-key-file="+tokens.key, "--root-ca-file="+authority.file(),
			// Each controller as its own service account: only these have the rights that the controllers need.
			"--use-service-account-credentials=true",
			"--kube-api-qps=2000", "--kube-api-burst=4000",
		),
		u.process(name, "kube-scheduler",
			"--config="+schedulerFile,
			"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", ports[2]),
			"--tls-cert-file="+serving.cert, "--tls-private-key-file="+serving.key,
		),
		u.process(name, "kwok",
			"--kubeconfig="+users["kwok"], "--config="+stageFile, "--manage-all-nodes=true",
			fmt.Sprintf("--server-address=127.0.0.1:%d", ports[3]),
			"--tls-cert-file="+serving.cert, "--tls-private-key-file="+serving.key,
			// A Lease is renewed when a quarter of its time has passed. The controller for Nodes waits 50 s for that, and more often
			// than every 30 s only costs: a hundred Nodes made ten writes a second.
			"--node-lease-duration-seconds=120", "--node-ip=127.0.0.1", "--cidr=10.0.0.1/8",
		),
	}
	if u.address != "" {
		c.serveNodes(u.address)
	}
	for i, path := range []string{"/readyz", "/healthz", "/readyz", "/readyz"}[:len(c.processes)] {
		c.processes[i].ready = fmt.Sprintf("https://127.0.0.1:%d%s", ports[i], path)
	}
	if u.auditLog && name == "infra" {
		flags, err := writeAudit(dir, filepath.Join(u.dir, "logs", name+"-audit.log"))
		if err != nil {
			return nil, err
		}
		c.processes[0].args = append(c.processes[0].args, flags...)
	}
	if u.certManager && name == "infra" {
		c.processes = append(c.processes, u.process(name, "cert-manager", "--kubeconfig="+users["cert-manager"]))
	}
	return c, nil
}

// serveNodes lets real kubelets be the cluster's Nodes: the API server listens where they are, is an endpoint of the Service "kubernetes", and
// talks to Pods itself, because no kube-proxy runs beside it. kwok doesn't run.
func (c *cluster) serveNodes(address string) {
	server := c.processes[0]
	server.args = slices.DeleteFunc(server.args, func(arg string) bool {
		return strings.HasPrefix(arg, "--bind-address=") || strings.HasPrefix(arg, "--endpoint-reconciler-type=")
	})
	server.args = append(server.args, "--bind-address=0.0.0.0", "--advertise-address="+address, "--enable-aggregator-routing=true",
		"--kubelet-preferred-address-types=InternalIP", "--kubelet-certificate-authority="+c.ca,
		"--kubelet-client-certificate="+c.kubelets.cert, "--kubelet-client-key="+c.kubelets.key)
	c.processes = c.processes[:len(c.processes)-1]
}

// writeAdmission has the API server show a certificate to webhooks that ask for one. It is signed by an authority that signs
// nothing else: ca.crt in the directory.
func writeAdmission(dir, name string, c *cluster) (string, error) {
	authority, err := newAuthority(dir, name+"-webhooks")
	if err != nil {
		return "", err
	}
	client, err := authority.issue("apiserver", "kube-apiserver")
	if err != nil {
		return "", err
	}
	// A user of this name is shown to every webhook.
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := writeKubeconfig(kubeconfig, `"*"`, c.server, c.ca, client); err != nil {
		return "", err
	}
	file := filepath.Join(dir, "admission.yaml")
	return file, os.WriteFile(file, []byte(fmt.Sprintf(admissionConfig, kubeconfig)), 0o600)
}

const admissionConfig = `apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: MutatingAdmissionWebhook
  configuration: &webhooks
    apiVersion: apiserver.config.k8s.io/v1
    kind: WebhookAdmissionConfiguration
    kubeConfigFile: %q
- name: ValidatingAdmissionWebhook
  configuration: *webhooks
`

// writeAudit writes an audit policy and returns the API server's flags for it. Each event is in the log before its request is answered.
func writeAudit(dir, log string) ([]string, error) {
	file := filepath.Join(dir, "audit.yaml")
	flags := []string{"--audit-policy-file=" + file, "--audit-log-path=" + log, "--audit-log-mode=blocking"}
	return flags, os.WriteFile(file, []byte(auditPolicy), 0o600)
}

// Patches of webhooks are annotations from the level Request on. Kubelets write the status all the time.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Request
  verbs: [create, update, patch, delete]
  resources: [{group: "", resources: [pods, pods/binding, pods/ephemeralcontainers, pods/resize]}]
- level: None
`

const schedulerConfig = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: %q, qps: 2000, burst: 4000}
# Tests change Nodes and expect Pods to move on at once.
podInitialBackoffSeconds: 1
podMaxBackoffSeconds: 1
`

// startCluster starts the cluster's programs and waits until Pods can be made.
func (u *up) startCluster(ctx context.Context, c *cluster) error {
	for i, p := range c.processes {
		if err := u.starter.start(p); err != nil {
			return err
		}
		if i > 0 {
			continue
		}
		if err := c.await(ctx, p); err != nil {
			return err
		}
		if u.certManager && c.name == "infra" {
			if err := u.applyCertManager(ctx, c); err != nil {
				return err
			}
		}
	}
	for _, p := range c.processes {
		if err := c.await(ctx, p); err != nil {
			return err
		}
	}
	// Each Pod needs the ServiceAccount that a controller makes.
	return poll(ctx, func() error { return c.get(ctx, c.server+"/api/v1/namespaces/default/serviceaccounts/default") })
}

// await waits until a process says that it works.
func (c *cluster) await(ctx context.Context, p *process) error {
	if p.ready == "" {
		return nil
	}
	return poll(ctx, func() error { return c.get(ctx, p.ready) })
}

func (c *cluster) get(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := c.admin.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(response.Body, 1024))
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", url, response.Status, body)
	}
	return nil
}

func poll(ctx context.Context, try func() error) error {
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; the last answer was: %w", context.Cause(ctx), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func httpClient(ca string, client pair) (*http.Client, error) {
	pem, err := os.ReadFile(ca)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	certificate, err := tls.LoadX509KeyPair(client.cert, client.key)
	if err != nil {
		return nil, err
	}
	return &http.Client{
		Timeout: 5 * time.Second,
		Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{certificate}},
		},
	}, nil
}
