package ferrovirt

import (
	"net/http"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
)

// Admit asks one of Ferrovirt's webhooks.
func Admit(hook string, config *v1.KubeVirtConfiguration, review *admissionv1.AdmissionReview, objects ...any) *admissionv1.AdmissionResponse {
	var answer admissionv1.AdmissionReview
	if err := Ask(Question{KubeVirt: kubeVirt(config), Hook: hook, Review: review, Objects: objects}, &answer); err != nil {
		return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "ferrovirt: " + err.Error(), Code: http.StatusTeapot}}
	}
	response := answer.Response
	// What the API server makes of an answer anyway, and what says on purpose that a kind is stored and not used.
	response.Warnings = slices.DeleteFunc(response.Warnings, func(warning string) bool {
		return strings.HasPrefix(warning, "instance types and preferences are stored, but not applied yet")
	})
	if len(response.Warnings) == 0 {
		response.Warnings = nil
	}
	if response.Result != nil {
		response.Result.Status = ""
	}
	return response
}

// Validate asks for the rules of an instance's spec alone.
func Validate(path string, spec any, config *v1.KubeVirtConfiguration) []metav1.StatusCause {
	var answer struct {
		Causes []metav1.StatusCause `json:"causes"`
	}
	if err := Ask(Question{KubeVirt: kubeVirt(config), Spec: spec, Path: path}, &answer); err != nil {
		return []metav1.StatusCause{{Message: "ferrovirt: " + err.Error()}}
	}
	return answer.Causes
}

func kubeVirt(config *v1.KubeVirtConfiguration) v1.KubeVirt {
	kubevirt := v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Name: "kubevirt", Namespace: "kubevirt"}}
	if config != nil {
		kubevirt.Spec.Configuration = *config
	}
	return kubevirt
}
