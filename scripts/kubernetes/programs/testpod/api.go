package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
)

const (
	groupVersion = "check.ferrovirt.test/v1"
	denial       = "denied by the webhook on the host"
)

// serveAPI shows from outside of the cluster that the API server's aggregation layer and its webhooks are set up right:
// GET /apis/check.ferrovirt.test/v1/whoami says who the aggregation layer claims the user is, and /admit denies everything.
func serveAPI(address, certificate, key, frontProxyCA string) error {
	pem, err := os.ReadFile(frontProxyCA)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return fmt.Errorf("no certificate in %s", frontProxyCA)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /apis/"+groupVersion, func(w http.ResponseWriter, r *http.Request) {
		answer(w, map[string]any{
			"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": groupVersion, "resources": []any{},
		})
	})
	mux.HandleFunc("GET /apis/"+groupVersion+"/whoami", func(w http.ResponseWriter, r *http.Request) {
		// The headers count only if they come from the holder of the front proxy's certificate.
		if len(r.TLS.PeerCertificates) == 0 {
			http.Error(w, "no client certificate", http.StatusUnauthorized)
			return
		}
		answer(w, map[string]any{
			"user": r.Header.Get("X-Remote-User"), "groups": r.Header.Values("X-Remote-Group"),
			"proxy": r.TLS.PeerCertificates[0].Subject.CommonName,
		})
	})
	mux.HandleFunc("POST /admit", admit)
	server := http.Server{
		Addr:      address,
		Handler:   mux,
		TLSConfig: &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: roots},
	}
	return server.ListenAndServeTLS(certificate, key)
}

func admit(w http.ResponseWriter, r *http.Request) {
	var review struct {
		Request struct {
			UID string `json:"uid"`
		} `json:"request"`
	}
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer(w, map[string]any{
		"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
		"response": map[string]any{"uid": review.Request.UID, "allowed": false, "status": map[string]any{"message": denial}},
	})
}

func answer(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(body); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}
