// The one program of the test cluster's own image. What it does is its first argument, without which it pauses:
//
//	pause            waits, and reaps children: the sandbox container of every pod
//	serve ADDRESS    answers every HTTP request with the host's name
//	get URL          prints the body of one HTTP response
//	lookup NAME      prints the addresses of a name
//	size FILE        prints the size of a file
//	registry ADDRESS DIRECTORY
//	                 serves the OCI archives of a directory as a container registry; see registry.go
//	provision SERVER PKI DIRECTORY NODE
//	                 a storage class of directories; see storage.go
//	serve-api ADDRESS CERTIFICATE KEY FRONT_PROXY_CA
//	                 an aggregated API and an admission webhook; see api.go
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const timeout = 10 * time.Second

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 0, len(args) == 1 && args[0] == "pause":
		return pause()
	case len(args) == 2 && args[0] == "serve":
		return serve(args[1])
	case len(args) == 2 && args[0] == "get":
		return get(args[1])
	case len(args) == 2 && args[0] == "lookup":
		return lookup(args[1])
	case len(args) == 2 && args[0] == "size":
		return size(args[1])
	case len(args) == 3 && args[0] == "registry":
		return serveRegistry(args[1], args[2])
	case len(args) == 5 && args[0] == "provision":
		return provision(args[1], args[2], args[3], args[4])
	case len(args) == 5 && args[0] == "serve-api":
		return serveAPI(args[1], args[2], args[3], args[4])
	}
	return fmt.Errorf("the head of main.go says what testpod can do; not this: %q", args)
}

func pause() error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return nil
		}
		// One signal may stand for several children.
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if err != nil || pid <= 0 {
				break
			}
		}
	}
	return nil
}

func serve(address string) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go func() {
		<-stop
		os.Exit(0)
	}()
	return http.ListenAndServe(address, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s\n", name)
	}))
}

func get(url string) error {
	client := http.Client{Timeout: timeout}
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(os.Stdout, response.Body)
	return err
}

func lookup(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupHost(ctx, name)
	if err != nil {
		return err
	}
	for _, address := range addresses {
		fmt.Println(address)
	}
	return nil
}

func size(file string) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	fmt.Println(info.Size())
	return nil
}
