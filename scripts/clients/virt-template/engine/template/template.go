// Package template is an engine that always says no.
package template

import (
	"errors"

	"k8s.io/apimachinery/pkg/util/validation/field"
	virtv1 "kubevirt.io/api/core/v1"
	"kubevirt.io/virt-template-api/core/v1beta1"
)

var errAbsent = errors.New("this virtctl was built without templates")

func MergeParameters([]v1beta1.Parameter, map[string]string) ([]v1beta1.Parameter, error) {
	return nil, errAbsent
}

func ValidateParameterReferences(*v1beta1.VirtualMachineTemplate) ([]string, field.ErrorList) {
	return nil, nil
}

type Processor struct{}

func GetDefaultProcessor() Processor { return Processor{} }

func (Processor) Process(*v1beta1.VirtualMachineTemplate) (*virtv1.VirtualMachine, string, error) {
	return nil, "", errAbsent
}
