// Added to the package cluster of KubeVirt's functional tests when scripts/functests/suite.sh builds them.
package cluster

import (
	"context"
	"fmt"
	"net"

	k8sv1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubevirt.io/client-go/kubecli"
)

// podOfNode stands for a pod of virt-handler, which an embedded host does not have: one address of each network of the node's pods.
func podOfNode(string) (*k8sv1.Pod, error) {
	client, err := kubecli.GetKubevirtClient()
	if err != nil {
		return nil, err
	}
	nodes, err := client.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	pod := &k8sv1.Pod{}
	for _, node := range nodes.Items {
		for _, network := range node.Spec.PodCIDRs {
			address, _, err := net.ParseCIDR(network)
			if err != nil {
				return nil, err
			}
			pod.Status.PodIPs = append(pod.Status.PodIPs, k8sv1.PodIP{IP: address.String()})
		}
	}
	if len(pod.Status.PodIPs) == 0 {
		return nil, fmt.Errorf("no node has networks of pods")
	}
	return pod, nil
}
