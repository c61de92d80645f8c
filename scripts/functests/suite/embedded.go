// Added to the package testsuite of KubeVirt's functional tests when scripts/functests/suite.sh builds them.
package testsuite

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"kubevirt.io/client-go/kubecli"

	"kubevirt.io/kubevirt/tests/framework/kubevirt"
)

// Five requests a second, client-go's default, are half a minute of clean-up after each spec.
func init() {
	kubecli.RegisterRestConfigHook(func(config *rest.Config) {
		config.QPS = 500
		config.Burst = 1000
	})
}

// served forgives that a kind is not there: of kinds that are not served (pools, clones, snapshots, exports, backups, migration
// policies) nothing is left to clean up.
func served(err error) error {
	if errors.IsNotFound(err) {
		return nil
	}
	return err
}

// letGo is the clean-up of instances. Upstream's takes their finalizers away, which Ferrovirt refuses to everybody but the node agent,
// who does it when the processes have ended. So their pods are deleted as the suite does it a line later, without grace, and the
// instances have to be gone soon after.
func letGo(gvr schema.GroupVersionResource, namespace string) error {
	ctx := context.Background()
	client := kubevirt.Client()
	deadline := time.Now().Add(3 * time.Minute)
	for {
		list, err := client.DynamicClient().Resource(gvr).Namespace(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(list.Items) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d instances of %s are still there, first %s", len(list.Items), namespace, list.Items[0].GetName())
		}
		pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "kubevirt.io=virt-launcher"})
		if err != nil {
			return err
		}
		now := int64(0)
		for _, pod := range pods.Items {
			err := client.CoreV1().Pods(namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
			if served(err) != nil {
				return err
			}
		}
		time.Sleep(300 * time.Millisecond)
	}
}
