package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// A kubelet's worker tries a Pod again after this time, and up to half of it more (backOffPeriod in pkg/kubelet/kubelet.go,
// workerBackOffPeriodJitterFactor in pkg/kubelet/pod_workers.go).
const (
	backOff = 10 * time.Second
	jitter  = 0.5
)

// The condition that says of a Pod that a kubelet would have started its containers. Its message has the times.
const started = "example.com/started"

// When a Pod was seen on its Node, and when its claims were prepared, in microseconds since 1970; and how often that had failed.
type times struct {
	Seen     int64 `json:"seen"`
	Prepared int64 `json:"prepared"`
	Failed   int   `json:"failed"`
}

// run prepares the claims of every Pod that is bound to the Node from now on, again and again as a kubelet does, and writes of each Pod
// whose claims are prepared that it has started. It returns when it knows the Pods that are there.
func (k *kubelet) run(ctx context.Context) error {
	own := func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", k.node).String()
	}
	factory := informers.NewSharedInformerFactoryWithOptions(k.client, 0, informers.WithTweakListOptions(own))
	pods := factory.Core().V1().Pods().Informer()
	cancels := map[types.UID]context.CancelFunc{}
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) {
			pod, is := object.(*v1.Pod)
			if !is || cancels[pod.UID] != nil {
				return
			}
			seen := time.Now()
			within, cancel := context.WithCancel(ctx)
			cancels[pod.UID] = cancel
			k.mutex.Lock()
			k.pods[pod.UID] = pod
			k.mutex.Unlock()
			go k.work(within, pod, seen)
		},
		DeleteFunc: func(object any) {
			if last, is := object.(cache.DeletedFinalStateUnknown); is {
				object = last.Obj
			}
			pod, is := object.(*v1.Pod)
			if !is {
				return
			}
			if cancel := cancels[pod.UID]; cancel != nil {
				cancel()
				delete(cancels, pod.UID)
			}
			// The call doesn't depend on the cluster, so its error only concerns this process.
			if err := k.manager.UnprepareResources(ctx, pod); err != nil {
				fmt.Fprintln(os.Stderr, "unprepare", pod.Name, err)
			}
			k.mutex.Lock()
			delete(k.pods, pod.UID)
			k.mutex.Unlock()
		},
	}
	if _, err := pods.AddEventHandler(handler); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), pods.HasSynced) {
		return fmt.Errorf("the Pods could not be listed")
	}
	return nil
}

// work starts one Pod.
func (k *kubelet) work(ctx context.Context, pod *v1.Pod, seen time.Time) {
	of := times{Seen: seen.UnixMicro()}
	for {
		err := k.manager.PrepareResources(ctx, pod)
		if err == nil {
			break
		}
		of.Failed++
		if !pause(ctx, wait.Jitter(backOff, jitter)) {
			return
		}
	}
	of.Prepared = time.Now().UnixMicro()
	message, _ := json.Marshal(of)
	patch, _ := json.Marshal(map[string]any{"status": map[string]any{"conditions": []v1.PodCondition{
		{Type: started, Status: v1.ConditionTrue, Reason: "Started", Message: string(message)},
	}}})
	for {
		_, err := k.client.CoreV1().Pods(pod.Namespace).Patch(
			ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		if err == nil || !pause(ctx, time.Second) {
			return
		}
	}
}

// pause waits, and returns whether the Pod still exists.
func pause(ctx context.Context, length time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(length):
		return true
	}
}
