// Package subresourcesv1beta1 has what is sent to, and comes from, a template's subresources.
package subresourcesv1beta1

import virtv1 "kubevirt.io/api/core/v1"

type ProcessOptions struct {
	Parameters map[string]string `json:"parameters,omitempty"`
}

type ProcessedVirtualMachineTemplate struct {
	VirtualMachine *virtv1.VirtualMachine `json:"virtualMachine,omitempty"`
	Message        string                 `json:"message,omitempty"`
}
