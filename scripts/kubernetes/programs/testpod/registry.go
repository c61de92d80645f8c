package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// A registry that can only be read: every OCI archive (*.tar) of a directory is an image of it, under the names in its index.
// Archives are looked at anew with every request, so that putting one there is all it takes to push.
func serveRegistry(address, directory string) error {
	return http.ListenAndServe(address, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, kind, reference := splitRegistryPath(r.URL.Path)
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			registryError(w, http.StatusMethodNotAllowed, "UNSUPPORTED", "this registry can only be read")
		case r.URL.Path == "/v2/":
			w.WriteHeader(http.StatusOK)
		case kind == "manifests" && !strings.HasPrefix(reference, "sha256:"):
			found, err := findManifest(directory, r.URL.Query().Get("ns"), name, reference)
			if err != nil {
				registryError(w, http.StatusNotFound, "MANIFEST_UNKNOWN", err.Error())
				return
			}
			sendBlob(w, r, directory, found.Digest, found.MediaType)
		case kind == "manifests":
			sendBlob(w, r, directory, reference, "application/vnd.oci.image.manifest.v1+json")
		case kind == "blobs":
			sendBlob(w, r, directory, reference, "application/octet-stream")
		default:
			registryError(w, http.StatusNotFound, "NAME_UNKNOWN", "no such path")
		}
	}))
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Annotations map[string]string `json:"annotations"`
}

// /v2/<name>/<kind>/<reference>, where the name may hold slashes.
func splitRegistryPath(path string) (name, kind, reference string) {
	parts := strings.Split(strings.TrimPrefix(path, "/v2/"), "/")
	if len(parts) < 3 {
		return "", "", ""
	}
	last := len(parts) - 1
	return strings.Join(parts[:last-1], "/"), parts[last-1], parts[last]
}

func findManifest(directory, host, name, tag string) (descriptor, error) {
	if host == "" {
		host = "docker.io"
	}
	wanted := fmt.Sprintf("%s/%s:%s", host, name, tag)
	var found descriptor
	err := inArchives(directory, "index.json", func(content io.ReadSeeker, _ int64) error {
		var index struct{ Manifests []descriptor }
		if err := json.NewDecoder(content).Decode(&index); err != nil {
			return err
		}
		for _, manifest := range index.Manifests {
			for _, key := range []string{"io.containerd.image.name", "org.opencontainers.image.ref.name"} {
				if manifest.Annotations[key] == wanted {
					found = manifest
				}
			}
		}
		return nil
	})
	if err == nil && found.Digest == "" {
		err = fmt.Errorf("no archive holds %s", wanted)
	}
	return found, err
}

func sendBlob(w http.ResponseWriter, r *http.Request, directory, digest, mediaType string) {
	sent := false
	err := inArchives(directory, "blobs/"+strings.Replace(digest, ":", "/", 1), func(content io.ReadSeeker, size int64) error {
		if sent {
			return nil
		}
		sent = true
		w.Header().Set("Content-Type", mediaType)
		w.Header().Set("Docker-Content-Digest", digest)
		w.Header().Set("Content-Length", fmt.Sprint(size))
		if r.Method == http.MethodHead {
			return nil
		}
		_, err := io.Copy(w, content)
		return err
	})
	if !sent {
		registryError(w, http.StatusNotFound, "BLOB_UNKNOWN", fmt.Sprintf("no archive holds %s (%v)", digest, err))
	}
}

// inArchives calls visit with each file of that name.
func inArchives(directory, name string, visit func(content io.ReadSeeker, size int64) error) error {
	archives, err := filepath.Glob(filepath.Join(directory, "*.tar"))
	if err != nil {
		return err
	}
	for _, archive := range archives {
		if err := inArchive(archive, name, visit); err != nil {
			return fmt.Errorf("%s: %w", archive, err)
		}
	}
	return nil
}

func inArchive(archive, name string, visit func(content io.ReadSeeker, size int64) error) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	for reader := tar.NewReader(file); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if strings.TrimPrefix(header.Name, "./") == name {
			start, err := file.Seek(0, io.SeekCurrent)
			if err != nil {
				return err
			}
			return visit(io.NewSectionReader(file, start, header.Size), header.Size)
		}
	}
}

func registryError(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	answer := map[string]any{"errors": []map[string]string{{"code": code, "message": message}}}
	_ = json.NewEncoder(w).Encode(answer)
}
