package webhooks

import (
	"context"

	admissionv1 "k8s.io/api/admission/v1"

	"kubevirt.io/kubevirt/pkg/ferrovirt"
)

func (f *PreferenceAdmitter) Admit(_ context.Context, ar *admissionv1.AdmissionReview) *admissionv1.AdmissionResponse {
	return ferrovirt.Admit("virtualmachinepreferences-validate", nil, ar)
}

func (f *ClusterPreferenceAdmitter) Admit(_ context.Context, ar *admissionv1.AdmissionReview) *admissionv1.AdmissionResponse {
	return ferrovirt.Admit("virtualmachineclusterpreferences-validate", nil, ar)
}
