// A part of a kubelet: Kubernetes' own plugin manager, which finds plugins by their sockets and registers them, and its own manager
// of ResourceClaims, which calls them before the containers of a Pod start. Everything else of a kubelet is missing: no container
// ever runs.
//
// It is driven by lines of JSON on standard input, and answers each with one line on standard output, in any order. It ends when
// standard input is closed.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/kubernetes/pkg/kubelet/cm/dra"
	draplugin "k8s.io/kubernetes/pkg/kubelet/cm/dra/plugin"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager"
)

// A line of standard input.
type request struct {
	// Number of the request, which its answer repeats.
	ID int `json:"id"`
	// registered: is the plugin of Driver registered? prepare: prepare the claims of a Pod. unprepare: the opposite. cancel: end the
	// request with the number Of, as a kubelet does for a Pod that is deleted meanwhile. run: start every Pod of the Node from now on.
	Do        string `json:"do"`
	Driver    string `json:"driver"`
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Of        int    `json:"of"`
}

// A line of standard output. Without an error the request has succeeded.
type answer struct {
	ID    int    `json:"id"`
	Error string `json:"error"`
}

type kubelet struct {
	client  kubernetes.Interface
	manager *dra.Manager
	node    string

	mutex   sync.Mutex
	cancels map[int]context.CancelFunc
	// The Pods whose claims may be prepared.
	pods map[types.UID]*v1.Pod
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig of the cluster")
	node := flag.String("node", "", "name of the Node")
	registry := flag.String("registry", "", "directory in which plugins make their sockets")
	state := flag.String("state", "", "directory for the state of the manager")
	flag.Parse()
	ctx, stop := context.WithCancel(context.Background())
	k, err := start(ctx, *kubeconfig, *node, *registry, *state)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	k.serve(ctx)
	stop()
}

func start(ctx context.Context, kubeconfig, node, registry, state string) (*kubelet, error) {
	settings, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	// A kubelet's defaults.
	settings.QPS, settings.Burst = 50, 100
	client, err := kubernetes.NewForConfig(settings)
	if err != nil {
		return nil, err
	}
	manager, err := dra.NewManager(klog.FromContext(ctx), client, state)
	if err != nil {
		return nil, err
	}
	k := &kubelet{client: client, manager: manager, node: node,
		cancels: map[int]context.CancelFunc{}, pods: map[types.UID]*v1.Pod{}}
	ready := config.NewSourcesReady(func(sets.Set[string]) bool { return true })
	getNode := func(ctx context.Context) (*v1.Node, error) {
		return client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	}
	if err := manager.Start(ctx, k.active, getNode, ready); err != nil {
		return nil, err
	}
	plugins := pluginmanager.NewPluginManager(registry, &record.FakeRecorder{})
	plugins.AddHandler(registration.DRAPlugin, manager.GetWatcherHandler())
	go plugins.Run(ctx, ready, ctx.Done())
	return k, nil
}

func (k *kubelet) active() []*v1.Pod {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	pods := make([]*v1.Pod, 0, len(k.pods))
	for _, pod := range k.pods {
		pods = append(pods, pod)
	}
	return pods
}

func (k *kubelet) serve(ctx context.Context) {
	var output sync.Mutex
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var asked request
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			fmt.Fprintln(os.Stderr, "a line is no request:", err)
			os.Exit(1)
		}
		if asked.Do == "run" {
			// It goes on after the answer.
			respond(&output, asked.ID, k.run(ctx))
			continue
		}
		within, cancel := context.WithCancel(ctx)
		k.mutex.Lock()
		k.cancels[asked.ID] = cancel
		k.mutex.Unlock()
		go func() {
			defer cancel()
			respond(&output, asked.ID, k.answer(within, asked))
		}()
	}
}

func respond(output *sync.Mutex, id int, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	line, _ := json.Marshal(answer{ID: id, Error: text})
	output.Lock()
	defer output.Unlock()
	fmt.Println(string(line))
}

func (k *kubelet) answer(ctx context.Context, asked request) error {
	switch asked.Do {
	case "registered":
		plugins, is := k.manager.GetWatcherHandler().(*draplugin.DRAPluginManager)
		if !is {
			return fmt.Errorf("the manager's handler is of another type")
		}
		_, err := plugins.GetPlugin(asked.Driver)
		return err
	case "cancel":
		k.mutex.Lock()
		cancel := k.cancels[asked.Of]
		k.mutex.Unlock()
		if cancel == nil {
			return fmt.Errorf("there is no request %d", asked.Of)
		}
		cancel()
		return nil
	case "prepare":
		pod, err := k.client.CoreV1().Pods(asked.Namespace).Get(ctx, asked.Pod, metav1.GetOptions{})
		if err != nil {
			return err
		}
		// A kubelet hears of the Pods of its own Node only.
		if pod.Spec.NodeName != k.node {
			return fmt.Errorf("the Pod is bound to %q, not to this Node", pod.Spec.NodeName)
		}
		k.mutex.Lock()
		k.pods[pod.UID] = pod
		k.mutex.Unlock()
		return k.manager.PrepareResources(ctx, pod)
	case "unprepare":
		// The Pod may be gone.
		for _, pod := range k.active() {
			if pod.Namespace != asked.Namespace || pod.Name != asked.Pod {
				continue
			}
			if err := k.manager.UnprepareResources(ctx, pod); err != nil {
				return err
			}
			k.mutex.Lock()
			delete(k.pods, pod.UID)
			k.mutex.Unlock()
		}
		return nil
	}
	return fmt.Errorf("%q is no request", asked.Do)
}
