// Command liqo serves the mutation of Pods of Liqo's webhook, and nothing else of Liqo: for measurements.
//
// Manager, cache, and webhook server are those of Liqo's own command. The server listens on loopback.
package main

import (
	"flag"
	"log"

	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"k8s.io/klog/v2"

	offloading "github.com/liqotech/liqo/apis/offloading/v1beta1"
	"github.com/liqotech/liqo/pkg/consts"
	"github.com/liqotech/liqo/pkg/utils/restcfg"
	podwebhook "github.com/liqotech/liqo/pkg/webhooks/pod"
)

func main() {
	port := flag.Int("port", 0, "port of the webhook on 127.0.0.1")
	certs := flag.String("cert-dir", "", "directory of tls.crt and tls.key")
	flag.Parse() // controller-runtime has registered --kubeconfig.
	if err := run(*port, *certs); err != nil {
		log.Fatal(err)
	}
}

func run(port int, certs string) error {
	ctrllog.SetLogger(klog.NewKlogr())
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	if err := offloading.AddToScheme(scheme); err != nil {
		return err
	}
	manager, err := ctrl.NewManager(restcfg.SetRateLimiter(config), ctrl.Options{
		Scheme:  scheme,
		Metrics: server.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{
			Host: "127.0.0.1", Port: port, CertDir: certs,
		}),
	})
	if err != nil {
		return err
	}
	manager.GetWebhookServer().Register("/mutate/pod", podwebhook.New(manager.GetClient(), consts.LiqoRuntimeClassName))
	return manager.Start(ctrl.SetupSignalHandler())
}
