// A program as people write them with client-go: typed and dynamic clients, an informer, apply, a patch, a token.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "client-go:", err)
		os.Exit(1)
	}
	fmt.Println("client-go: ok")
}

func run() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	namespace := "client-go"
	_, err = client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("namespace: %w", err)
	}
	maps := client.CoreV1().ConfigMaps(namespace)

	seen := make(chan string, 16)
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	informer := factory.Core().V1().ConfigMaps().Informer()
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { seen <- "add " + o.(*corev1.ConfigMap).Name },
		UpdateFunc: func(_, o any) { seen <- "update " + o.(*corev1.ConfigMap).Name },
		DeleteFunc: func(o any) {
			if object, ok := o.(*corev1.ConfigMap); ok {
				seen <- "delete " + object.Name
			}
		},
	})
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return errors.New("the informer does not sync")
	}
	wait := func(wanted string) error {
		for {
			select {
			case event := <-seen:
				if event == wanted {
					return nil
				}
			case <-ctx.Done():
				return fmt.Errorf("no %q came", wanted)
			}
		}
	}

	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Data: map[string]string{"a": "1"}}
	if _, err = maps.Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	if err = wait("add one"); err != nil {
		return err
	}
	if _, err = maps.Create(ctx, object, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("a second create: %v", err)
	}
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		current, err := maps.Get(ctx, "one", metav1.GetOptions{})
		if err != nil {
			return err
		}
		current.Data["b"] = "2"
		_, err = maps.Update(ctx, current, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("update: %w", err)
	}
	if err = wait("update one"); err != nil {
		return err
	}
	for kind, patch := range map[types.PatchType]string{
		types.MergePatchType:          `{"data":{"c":"3"}}`,
		types.StrategicMergePatchType: `{"metadata":{"labels":{"d":"4"}}}`,
		types.JSONPatchType:           `[{"op":"add","path":"/data/e","value":"5"}]`,
	} {
		if _, err = maps.Patch(ctx, "one", kind, []byte(patch), metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
	}
	apply := applycorev1.ConfigMap("one", namespace).WithData(map[string]string{"a": "other"})
	if _, err = maps.Apply(ctx, apply, metav1.ApplyOptions{FieldManager: "somebody"}); !apierrors.IsConflict(err) {
		return fmt.Errorf("apply without force: %v", err)
	}
	applied, err := maps.Apply(ctx, apply, metav1.ApplyOptions{FieldManager: "somebody", Force: true})
	if err != nil || applied.Data["a"] != "other" || applied.Data["e"] != "5" {
		return fmt.Errorf("apply with force: %v %v", applied, err)
	}
	list, err := maps.List(ctx, metav1.ListOptions{LabelSelector: "d=4", Limit: 1})
	if err != nil || len(list.Items) != 1 {
		return fmt.Errorf("list: %v %v", list, err)
	}
	if err = maps.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "d"}); err != nil {
		return fmt.Errorf("delete of a collection: %w", err)
	}
	if err = wait("delete one"); err != nil {
		return err
	}
	seconds := int64(600)
	token, err := client.CoreV1().ServiceAccounts("default").CreateToken(ctx, "default",
		&authv1.TokenRequest{Spec: authv1.TokenRequestSpec{ExpirationSeconds: &seconds}}, metav1.CreateOptions{})
	if err != nil || token.Status.Token == "" {
		return fmt.Errorf("token: %w", err)
	}
	if err = virtualMachines(ctx, config, namespace); err != nil {
		return err
	}
	return client.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{})
}

// A custom resource through the dynamic client.
func virtualMachines(ctx context.Context, config *rest.Config, namespace string) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	machines := client.Resource(schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachines"}).Namespace(namespace)
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": map[string]any{"name": "halted"},
		"spec": map[string]any{"runStrategy": "Halted", "template": map[string]any{"spec": map[string]any{
			"domain": map[string]any{"devices": map[string]any{}, "memory": map[string]any{"guest": "64Mi"}},
		}}},
	}}
	if _, err = machines.Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("virtual machine: %w", err)
	}
	watch, err := machines.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("watch of virtual machines: %w", err)
	}
	defer watch.Stop()
	if err = machines.Delete(ctx, "halted", metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("deleting a virtual machine: %w", err)
	}
	for event := range watch.ResultChan() {
		if event.Type == "DELETED" {
			return nil
		}
	}
	return errors.New("the watch ended before the virtual machine was deleted")
}
