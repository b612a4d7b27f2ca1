// Command patches applies JSON Patches with the code that the API server applies those of admission webhooks with, and compares
// the results with what the fuzzer made of the same patches. It reads lines of JSON on its standard input: an object, its patch,
// and the patched object.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"reflect"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

type line struct {
	Object  json.RawMessage `json:"object"`
	Patch   json.RawMessage `json:"patch"`
	Patched json.RawMessage `json:"patched"`
}

// check returns nil where the API server's patcher makes the same object of the patch. It calls the library as the dispatcher of
// mutating webhooks does: with the library's defaults.
func check(text []byte) error {
	var pair line
	if err := json.Unmarshal(text, &pair); err != nil {
		return fmt.Errorf("the line can't be read: %w", err)
	}
	patch, err := jsonpatch.DecodePatch(pair.Patch)
	if err != nil {
		return fmt.Errorf("the patch can't be decoded: %w", err)
	}
	if len(patch) == 0 {
		return fmt.Errorf("the patch is empty")
	}
	patched, err := patch.Apply(pair.Object)
	if err != nil {
		return fmt.Errorf("the patch doesn't apply: %w", err)
	}
	var ours, theirs any
	if err := json.Unmarshal(patched, &theirs); err != nil {
		return fmt.Errorf("the result is no JSON: %w", err)
	}
	if err := json.Unmarshal(pair.Patched, &ours); err != nil {
		return fmt.Errorf("the expected result is no JSON: %w", err)
	}
	if !reflect.DeepEqual(ours, theirs) {
		return fmt.Errorf("the API server's patcher makes %s", patched)
	}
	return nil
}

// run checks all lines and returns their number and that of the failures.
func run(lines io.Reader, failures io.Writer) (int, int, error) {
	scanner := bufio.NewScanner(lines)
	scanner.Buffer(nil, 64<<20)
	count, failed := 0, 0
	for scanner.Scan() {
		count++
		if err := check(scanner.Bytes()); err != nil {
			failed++
			fmt.Fprintf(failures, "%v: %s\n", err, scanner.Bytes())
		}
	}
	return count, failed, scanner.Err()
}

func main() {
	count, failed, err := run(os.Stdin, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("%d patches, %d differ\n", count, failed)
	if failed > 0 {
		os.Exit(1)
	}
}
