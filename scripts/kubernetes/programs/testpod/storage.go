package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// The part of claims and volumes that a provisioner looks at; the two lists have it in common.
type storageObject struct {
	Metadata struct {
		Name, Namespace, UID string
		Annotations          map[string]string
	}
	Spec struct {
		StorageClassName, VolumeMode string
		AccessModes                  []string
		Resources                    struct{ Requests map[string]string }
		Local                        struct{ Path string }
	}
	Status struct{ Phase string }
}

type provisioner struct {
	server, directory, node string
	client                  http.Client
}

const selectedNode = "volume.kubernetes.io/selected-node"

// provision gives every claim of the classes local and local-wait a directory of the first node, or a file of it as a device,
// until it is killed. PKI is the directory of the cluster's certificates.
func provision(server, pki, directory, node string) error {
	pair, err := tls.LoadX509KeyPair(filepath.Join(pki, "admin.crt"), filepath.Join(pki, "admin.key"))
	if err != nil {
		return err
	}
	authority, err := os.ReadFile(filepath.Join(pki, "ca.crt"))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	transport := &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots}}
	p := provisioner{server, directory, node, http.Client{Timeout: timeout, Transport: transport}}
	for ; ; time.Sleep(500 * time.Millisecond) {
		// The API server may be gone for a while: tests kill it.
		if err := p.round(); err != nil {
			fmt.Fprintln(os.Stderr, time.Now().Format(time.TimeOnly), err)
		}
	}
}

func (p *provisioner) round() error {
	claims, err := p.list("/api/v1/persistentvolumeclaims")
	if err != nil {
		return err
	}
	for _, claim := range claims {
		waits := claim.Spec.StorageClassName == "local-wait" && claim.Metadata.Annotations[selectedNode] == ""
		if claim.ours() && claim.Status.Phase == "Pending" && !waits {
			if err := p.create(claim); err != nil {
				return err
			}
		}
	}
	volumes, err := p.list("/api/v1/persistentvolumes")
	if err != nil {
		return err
	}
	for _, volume := range volumes {
		if volume.ours() && volume.Status.Phase == "Released" {
			directory := filepath.Join(p.directory, volume.Metadata.Name)
			if device := volume.Spec.Local.Path; device != directory {
				if err := exec.Command("losetup", "--detach", device).Run(); err != nil {
					return fmt.Errorf("losetup --detach %s: %w", device, err)
				}
			}
			if err := os.RemoveAll(directory); err != nil {
				return err
			}
			if err := p.call("DELETE", "/api/v1/persistentvolumes/"+volume.Metadata.Name, nil, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

func (o *storageObject) ours() bool {
	class := o.Spec.StorageClassName
	return class == "local" || class == "local-wait"
}

func (p *provisioner) create(claim storageObject) error {
	name := "pvc-" + claim.Metadata.UID
	path := filepath.Join(p.directory, name)
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	// Whoever the pod runs as.
	if err := os.Chmod(path, 0o777); err != nil {
		return err
	}
	if claim.Spec.VolumeMode == "Block" {
		var err error
		if path, err = device(filepath.Join(path, "device"), claim.Spec.Resources.Requests["storage"]); err != nil {
			return err
		}
	}
	term := map[string]any{"key": "kubernetes.io/hostname", "operator": "In", "values": []string{p.node}}
	terms := []any{map[string]any{"matchExpressions": []any{term}}}
	volume := map[string]any{
		"apiVersion": "v1", "kind": "PersistentVolume",
		// Without the annotation the controller manager takes it for its own to delete, and cannot.
		"metadata": map[string]any{
			"name": name, "annotations": map[string]string{"pv.kubernetes.io/provisioned-by": "ferrovirt.test/local"},
		},
		"spec": map[string]any{
			"storageClassName": claim.Spec.StorageClassName, "accessModes": claim.Spec.AccessModes,
			"capacity":                      map[string]any{"storage": claim.Spec.Resources.Requests["storage"]},
			"persistentVolumeReclaimPolicy": "Delete", "volumeMode": claim.Spec.VolumeMode,
			"local":        map[string]any{"path": path},
			"nodeAffinity": map[string]any{"required": map[string]any{"nodeSelectorTerms": terms}},
			"claimRef": map[string]any{
				"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.Metadata.Namespace,
				"name": claim.Metadata.Name, "uid": claim.Metadata.UID,
			},
		},
	}
	err := p.call("POST", "/api/v1/persistentvolumes", volume, nil)
	if err != nil && strings.Contains(err.Error(), "409") {
		// It was made in an earlier round; the claim says so in a moment.
		return nil
	}
	return err
}

// device makes a file of that size a block device, unless it is one.
func device(file, size string) (string, error) {
	found, err := exec.Command("losetup", "--associated", file, "--noheadings", "--output", "NAME").Output()
	if name := strings.TrimSpace(string(found)); err == nil && name != "" {
		return name, nil
	}
	// truncate takes M and G for what Kubernetes calls Mi and Gi.
	if err := exec.Command("truncate", "--size", strings.TrimSuffix(size, "i"), file).Run(); err != nil {
		return "", fmt.Errorf("truncate --size %s: %w", size, err)
	}
	made, err := exec.Command("losetup", "--find", "--show", file).Output()
	return strings.TrimSpace(string(made)), err
}

func (p *provisioner) list(path string) ([]storageObject, error) {
	var found struct{ Items []storageObject }
	// From the API server's memory, however old.
	err := p.call("GET", path+"?resourceVersion=0", nil, &found)
	return found.Items, err
}

func (p *provisioner) call(method, path string, body, answer any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequest(method, p.server+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := p.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s", method, path, response.Status)
	}
	if answer == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(answer)
}
