// Package virttemplate is a client that always says no.
package virttemplate

import (
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"kubevirt.io/virt-template-api/core/subresourcesv1beta1"
	"kubevirt.io/virt-template-api/core/v1beta1"
)

type Interface interface {
	TemplateV1beta1() Client
}

type Client interface {
	RESTClient() rest.Interface
	VirtualMachineTemplates(namespace string) Templates
	VirtualMachineTemplateRequests(namespace string) Requests
}

type Templates interface {
	Get(context.Context, string, metav1.GetOptions) (*v1beta1.VirtualMachineTemplate, error)
	Process(context.Context, string, subresourcesv1beta1.ProcessOptions) (*subresourcesv1beta1.ProcessedVirtualMachineTemplate, error)
	CreateVirtualMachine(context.Context, string, subresourcesv1beta1.ProcessOptions) (*subresourcesv1beta1.ProcessedVirtualMachineTemplate, error)
}

type Requests interface {
	Create(context.Context, *v1beta1.VirtualMachineTemplateRequest, metav1.CreateOptions) (*v1beta1.VirtualMachineTemplateRequest, error)
}

func NewForConfig(*rest.Config) (Interface, error) {
	return nil, errors.New("this virtctl was built without templates")
}
