package services

import (
	"slices"
	"strings"

	k8sv1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"kubevirt.io/kubevirt/pkg/ferrovirt"
	storagetypes "kubevirt.io/kubevirt/pkg/storage/types"
)

// RenderLaunchManifest is Ferrovirt's.
func (t *TemplateService) RenderLaunchManifest(vmi *v1.VirtualMachineInstance) (*k8sv1.Pod, error) {
	kubevirt := v1.KubeVirt{}
	kubevirt.Spec.Configuration = *t.clusterConfig.GetConfig()
	if t.imagePullSecret != "" {
		kubevirt.Spec.ImagePullSecrets = []k8sv1.LocalObjectReference{{Name: t.imagePullSecret}}
	}
	question := ferrovirt.Question{KubeVirt: kubevirt, VMI: vmi, LauncherImage: t.launcherImage}
	// Without the cluster's ratio, which is ours to apply.
	arch := vmi.Spec.Architecture
	if arch == "" {
		arch = t.clusterConfig.GetClusterCPUArch()
	}
	overhead := t.launcherHypervisorResources.GetMemoryOverhead(vmi, arch, nil)
	question.Overhead = overhead.Value()
	for _, claim := range t.persistentVolumeClaimStore.List() {
		question.Objects = append(question.Objects, ferrovirt.Object("v1", "PersistentVolumeClaim", claim))
	}
	for _, quota := range t.resourceQuotaStore.List() {
		question.Objects = append(question.Objects, ferrovirt.Object("v1", "ResourceQuota", quota))
	}
	for _, namespace := range t.namespaceStore.List() {
		question.Objects = append(question.Objects, ferrovirt.Object("v1", "Namespace", namespace))
	}
	var answer struct {
		Pod     k8sv1.Pod `json:"pod"`
		Missing string    `json:"missing"`
	}
	if err := ferrovirt.Ask(question, &answer); err != nil {
		return nil, err
	}
	if answer.Missing != "" {
		return nil, storagetypes.PvcNotFoundError{Reason: answer.Missing}
	}
	pod := &answer.Pod
	// Names follow from instances: docs/decisions/0007.
	if end := strings.LastIndex(pod.Name, "-"); end >= 0 {
		pod.GenerateName = pod.Name[:end+1]
	}
	// Which hypervisor is one more thing that a VM may choose.
	delete(pod.Spec.NodeSelector, "hypervisor.node.kubevirt.io/qemu-kvm")
	canonical(pod)
	return pod, t.translateDirectories(vmi, pod)
}

// canonical writes amounts as the API server would, and as upstream's code keeps them in memory, which the rows compare: with the text
// that was parsed beside it or without.
func canonical(pod *k8sv1.Pod) {
	for _, containers := range [][]k8sv1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range containers {
			for _, list := range []k8sv1.ResourceList{containers[i].Resources.Requests, containers[i].Resources.Limits} {
				for name, amount := range list {
					amount = resource.MustParse(amount.String())
					if !strings.HasPrefix(string(name), K8sDevicePrefix+"/kvm") {
						amount.Add(resource.Quantity{})
					}
					list[name] = amount
				}
			}
		}
	}
}

// translateDirectories puts upstream's own directories into the place of ours: which ones a launcher has for itself is between it and
// its pod (docs/ARCHITECTURE.md), and the rows count what they add for the instance.
func (t *TemplateService) translateDirectories(vmi *v1.VirtualMachineInstance, pod *k8sv1.Pod) error {
	bare := &v1.VirtualMachineInstance{ObjectMeta: vmi.ObjectMeta}
	bare.Spec.Domain.Devices.DisableHotplug = vmi.Spec.Domain.Devices.DisableHotplug
	theirs, err := t.newVolumeRenderer(bare, nil, vmi.Namespace, nil, "")
	if err != nil {
		return err
	}
	ours := []string{"private", "sockets", "ephemeral-disks", "libvirt-runtime"}
	compute := &pod.Spec.Containers[0]
	volumes, mounts := theirs.Volumes(), theirs.Mounts()
	for _, volume := range pod.Spec.Volumes {
		if !slices.Contains(ours, volume.Name) {
			volumes = append(volumes, volume)
		}
	}
	for _, mount := range compute.VolumeMounts {
		if !slices.Contains(ours, mount.Name) {
			mounts = append(mounts, mount)
		}
	}
	pod.Spec.Volumes, compute.VolumeMounts = volumes, mounts
	return nil
}
