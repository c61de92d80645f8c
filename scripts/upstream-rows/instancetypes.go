package webhooks

import (
	"context"

	admissionv1 "k8s.io/api/admission/v1"

	"kubevirt.io/kubevirt/pkg/ferrovirt"
)

func (f *InstancetypeAdmitter) Admit(_ context.Context, ar *admissionv1.AdmissionReview) *admissionv1.AdmissionResponse {
	return ferrovirt.Admit("virtualmachineinstancetypes-validate", nil, ar)
}

func (f *ClusterInstancetypeAdmitter) Admit(_ context.Context, ar *admissionv1.AdmissionReview) *admissionv1.AdmissionResponse {
	return ferrovirt.Admit("virtualmachineclusterinstancetypes-validate", nil, ar)
}
