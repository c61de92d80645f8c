// Package v1beta1 has as much of the types of template.kubevirt.io as virtctl needs to compile.
package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var GroupVersion = schema.GroupVersion{Group: "template.kubevirt.io", Version: "v1beta1"}

type VirtualMachineTemplate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              VirtualMachineTemplateSpec `json:"spec"`
}

type VirtualMachineTemplateSpec struct {
	Message        string                `json:"message,omitempty"`
	Parameters     []Parameter           `json:"parameters,omitempty"`
	VirtualMachine *runtime.RawExtension `json:"virtualMachine"`
}

type Parameter struct {
	Name        string `json:"name"`
	DisplayName string `json:"displayName,omitempty"`
	Description string `json:"description,omitempty"`
	Value       string `json:"value,omitempty"`
	Generate    string `json:"generate,omitempty"`
	From        string `json:"from,omitempty"`
	Required    bool   `json:"required,omitempty"`
}

// DeepCopyObject makes a template a runtime.Object. Nothing that is built here shares one.
func (t *VirtualMachineTemplate) DeepCopyObject() runtime.Object {
	c := *t
	return &c
}

type VirtualMachineTemplateRequest struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              VirtualMachineTemplateRequestSpec `json:"spec"`
}

type VirtualMachineTemplateRequestSpec struct {
	VirtualMachineRef VirtualMachineReference `json:"virtualMachineRef"`
	TemplateName      string                  `json:"templateName,omitempty"`
}

type VirtualMachineReference struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}
