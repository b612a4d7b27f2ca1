package main

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"reflect"
	"sync"
	"syscall"
	"time"

	cmapi "github.com/cert-manager/cert-manager/pkg/api"
	"github.com/cert-manager/cert-manager/pkg/controller"
	"github.com/cert-manager/cert-manager/pkg/controller/cainjector"
	"github.com/cert-manager/cert-manager/pkg/util"
	corev1 "k8s.io/api/core/v1"
	apiext "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	apireg "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	// The controllers that issue certificates from self-signed and CA issuers; each registers itself.
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
)

//go:generate sh -c "rm -rf generated/crds && mkdir -p generated/crds && install -m 644 \"$(go list -m -f '{{.Dir}}' github.com/cert-manager/cert-manager)\"/deploy/crds/*.yaml generated/crds/"

// certManagerCRDs holds cert-manager's own CustomResourceDefinitions, copied out of its module by go generate.
//
//go:embed generated/crds/*.yaml
var certManagerCRDs embed.FS

// certManagerNamespace is where ClusterIssuers look for their Secrets.
const certManagerNamespace = "cert-manager"

func runCertManager() int {
	// Not flag.CommandLine, in which a library has a flag of the same name.
	flags := flag.NewFlagSet("cert-manager", flag.ExitOnError)
	kubeconfig := flags.String("kubeconfig", "", "kubeconfig of the cluster")
	_ = flags.Parse(os.Args[1:])
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	ctrl.SetLogger(klog.Background())
	var wait sync.WaitGroup
	start := func(name string, run func() error) {
		wait.Go(func() {
			if err := run(); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	if err := startIssuing(ctx, *kubeconfig, start); err != nil {
		fmt.Fprintln(os.Stderr, "cert-manager:", err)
		return 1
	}
	start("cainjector", func() error { return injectCAs(ctx, *kubeconfig) })
	<-ctx.Done()
	wait.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "cert-manager:", err)
		return 1
	}
	return 0
}

// startIssuing starts the controllers that turn Certificates into Secrets.
func startIssuing(ctx context.Context, kubeconfig string, start func(string, func() error)) error {
	var certificates controller.CertificateOptions
	shortenBackoff(&certificates)
	factory, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		Kubeconfig:         kubeconfig,
		KubernetesAPIQPS:   100,
		KubernetesAPIBurst: 200,
		IssuerOptions:      controller.IssuerOptions{ClusterResourceNamespace: certManagerNamespace},
		CertificateOptions: certificates,
	})
	if err != nil {
		return err
	}
	root, err := factory.Build()
	if err != nil {
		return err
	}
	for name, construct := range controller.Known() {
		c, err := construct(factory)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		start(name, func() error { return c.Run(5, ctx) })
	}
	root.SharedInformerFactory.Start(ctx.Done())
	root.KubeSharedInformerFactory.Start(ctx.Done())
	root.HTTP01ResourceMetadataInformersFactory.Start(ctx.Done())
	return nil
}

// shortenBackoff sets how long cert-manager waits after a failed request, an hour by default. It sets the fields by their
// names, because the releases of cert-manager that go with Kubernetes 1.34 and 1.35 don't have all of them.
func shortenBackoff(options *controller.CertificateOptions) {
	fields := reflect.ValueOf(options).Elem()
	for name, pause := range map[string]time.Duration{
		"CertificateRequestMinimumBackoffDuration": time.Second,
		"CertificateRequestMaximumBackoffDuration": 10 * time.Second,
	} {
		if field := fields.FieldByName(name); field.IsValid() {
			field.Set(reflect.ValueOf(pause))
		}
	}
}

// injectCAs fills caBundles that are annotated with cert-manager.io/inject-ca-from.
func injectCAs(ctx context.Context, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, cmapi.AddToScheme, apiext.AddToScheme, apireg.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	// The cainjector applies under the first word of its user agent, and the API server refuses an apply under no name.
	config = util.RestConfigWithUserAgent(config, "cainjector")
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme,
		// No port of its own: several control planes run on one machine.
		Metrics: server.Options{BindAddress: "0"},
		// The cainjector is triggered by a cache of the metadata of Secrets and doesn't retry when a Secret isn't usable yet. So
		// it has to read the Secret itself from the API server, because a second cache could be behind the first.
		Client: client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}}}},
	})
	if err != nil {
		return err
	}
	err = cainjector.RegisterAllInjectors(ctx, manager, cainjector.SetupOptions{
		EnableCertificatesDataSource: true,
		EnabledReconcilersFor: map[string]bool{
			"mutatingwebhookconfiguration":   true,
			"validatingwebhookconfiguration": true,
		},
	})
	if err != nil {
		return err
	}
	return manager.Start(ctx)
}

// applyCertManager defines what cert-manager's programs need before they start.
func (u *up) applyCertManager(ctx context.Context, c *cluster) error {
	manifests := fmt.Appendf(nil, "{apiVersion: v1, kind: Namespace, metadata: {name: %s}}\n", certManagerNamespace)
	files, err := fs.Glob(certManagerCRDs, "generated/crds/*.yaml")
	if err != nil {
		return err
	}
	for _, file := range files {
		data, err := certManagerCRDs.ReadFile(file)
		if err != nil {
			return err
		}
		manifests = append(append(manifests, "\n---\n"...), data...)
	}
	args := append(u.programs.command("kubectl"), "--kubeconfig="+c.kubeconfig, "apply", "--server-side", "-f", "-")
	command := exec.CommandContext(ctx, args[0], args[1:]...)
	command.Stdin = bytes.NewReader(manifests)
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("cert-manager's definitions: %w: %s", err, output)
	}
	return nil
}
