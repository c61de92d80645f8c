// Package ferrovirt asks Ferrovirt's own code what upstream's would have answered.
package ferrovirt

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"

	"github.com/onsi/ginkgo/v2"
)

var (
	lock  sync.Mutex
	lines *bufio.Reader
	input *json.Encoder
)

// Question is what crates/virt-api/examples/upstream_rows.rs reads.
type Question struct {
	KubeVirt      any    `json:"kubevirt"`
	Objects       []any  `json:"objects,omitempty"`
	VMI           any    `json:"vmi,omitempty"`
	LauncherImage string `json:"launcherImage,omitempty"`
	Overhead      int64  `json:"overhead,omitempty"`
	Hook          string `json:"hook,omitempty"`
	Spec          any    `json:"spec,omitempty"`
	Path          string `json:"path,omitempty"`
	Review        any    `json:"review,omitempty"`
}

// Ask puts a question to the program in FERROVIRT_ROWS and reads its answer.
func Ask(question Question, answer any) error {
	// The report then tells rows that are about our code from those that are about upstream's own functions.
	ginkgo.AddReportEntry("ferrovirt", ginkgo.ReportEntryVisibilityNever)
	lock.Lock()
	defer lock.Unlock()
	if input == nil {
		program := exec.Command(os.Getenv("FERROVIRT_ROWS"))
		program.Stderr = os.Stderr
		in, err := program.StdinPipe()
		if err != nil {
			return err
		}
		out, err := program.StdoutPipe()
		if err != nil {
			return err
		}
		if err := program.Start(); err != nil {
			return err
		}
		input, lines = json.NewEncoder(in), bufio.NewReader(out)
	}
	if err := input.Encode(question); err != nil {
		return err
	}
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("ferrovirt ended: %w", err)
	}
	var failure struct {
		Error string `json:"error"`
	}
	if err := json.Unmarshal(line, &failure); err != nil {
		return err
	}
	if failure.Error != "" {
		return errors.New(failure.Error)
	}
	return json.Unmarshal(line, answer)
}

// Object is an object of the cluster, with its kind, which Go's own leave out.
func Object(apiVersion, kind string, object any) any {
	text, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	fields := map[string]any{}
	if err := json.Unmarshal(text, &fields); err != nil {
		panic(err)
	}
	fields["apiVersion"], fields["kind"] = apiVersion, kind
	return fields
}
