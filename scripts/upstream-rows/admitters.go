package admitters

import (
	"context"
	"encoding/json"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sfield "k8s.io/apimachinery/pkg/util/validation/field"
	v1 "kubevirt.io/api/core/v1"

	"kubevirt.io/kubevirt/pkg/ferrovirt"
	virtconfig "kubevirt.io/kubevirt/pkg/virt-config"
)

func (admitter *VMICreateAdmitter) Admit(_ context.Context, ar *admissionv1.AdmissionReview) *admissionv1.AdmissionResponse {
	return ferrovirt.Admit("virtualmachineinstances-validate-create", admitter.ClusterConfig.GetConfig(), ar)
}

func (admitter *VMIUpdateAdmitter) Admit(_ context.Context, ar *admissionv1.AdmissionReview) *admissionv1.AdmissionResponse {
	return ferrovirt.Admit("virtualmachineinstances-validate-update", admitter.clusterConfig.GetConfig(), ar)
}

func (admitter *VMsAdmitter) Admit(ctx context.Context, ar *admissionv1.AdmissionReview) *admissionv1.AdmissionResponse {
	var vm v1.VirtualMachine
	var objects []any
	if err := json.Unmarshal(ar.Request.Object.Raw, &vm); err == nil && len(vm.Status.VolumeRequests) != 0 && vm.Status.Ready {
		if vmi, err := admitter.VirtClient.VirtualMachineInstance(vm.Namespace).Get(ctx, vm.Name, metav1.GetOptions{}); err == nil {
			// The mock has one for every namespace and name.
			vmi.Namespace, vmi.Name = vm.Namespace, vm.Name
			objects = append(objects, ferrovirt.Object("kubevirt.io/v1", "VirtualMachineInstance", vmi))
		}
	}
	if ar.Request.Namespace == "" {
		ar.Request.Namespace = vm.Namespace
	}
	return ferrovirt.Admit("virtualmachines-validate", admitter.ClusterConfig.GetConfig(), ar, objects...)
}

func (admitter *VMIRSAdmitter) Admit(_ context.Context, ar *admissionv1.AdmissionReview) *admissionv1.AdmissionResponse {
	return ferrovirt.Admit("virtualmachinereplicaset-validate", admitter.ClusterConfig.GetConfig(), ar)
}

func (admitter *VMIPresetAdmitter) Admit(_ context.Context, ar *admissionv1.AdmissionReview) *admissionv1.AdmissionResponse {
	return ferrovirt.Admit("vmipreset-validate", nil, ar)
}

func (admitter *MigrationCreateAdmitter) Admit(ctx context.Context, ar *admissionv1.AdmissionReview) *admissionv1.AdmissionResponse {
	var objects []any
	if list, err := admitter.virtClient.KubevirtV1().VirtualMachineInstances("").List(ctx, metav1.ListOptions{}); err == nil {
		for i := range list.Items {
			objects = append(objects, ferrovirt.Object("kubevirt.io/v1", "VirtualMachineInstance", &list.Items[i]))
		}
	}
	if list, err := admitter.virtClient.KubevirtV1().VirtualMachineInstanceMigrations("").List(ctx, metav1.ListOptions{}); err == nil {
		for i := range list.Items {
			objects = append(objects, ferrovirt.Object("kubevirt.io/v1", "VirtualMachineInstanceMigration", &list.Items[i]))
		}
	}
	var migration v1.VirtualMachineInstanceMigration
	if err := json.Unmarshal(ar.Request.Object.Raw, &migration); err == nil && ar.Request.Namespace == "" {
		// Whoever asks a webhook says where.
		ar.Request.Namespace = migration.Namespace
	}
	return ferrovirt.Admit("migration-validate-create", admitter.clusterConfig.GetConfig(), ar, objects...)
}

func (admitter *MigrationUpdateAdmitter) Admit(_ context.Context, ar *admissionv1.AdmissionReview) *admissionv1.AdmissionResponse {
	return ferrovirt.Admit("migration-validate-update", nil, ar)
}

func ValidateVirtualMachineInstanceSpec(field *k8sfield.Path, spec *v1.VirtualMachineInstanceSpec, config *virtconfig.ClusterConfig) []metav1.StatusCause {
	return ferrovirt.Validate(field.String(), spec, config.GetConfig())
}
