package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"

	"github.com/dustin/go-humanize"

	"github.com/cistern-ml/cistern/autograd/metric"
	"github.com/cistern-ml/cistern/internal/output"
	"github.com/cistern-ml/cistern/trace"
)

// result is what -json writes.
type result struct {
	Device       string   `json:"device"`
	Model        string   `json:"model"`
	Optimizer    string   `json:"optimizer"`
	Batch        int      `json:"batch"`
	Ranks        int      `json:"ranks"`
	Seed         uint64   `json:"seed"`
	TestAccuracy float64  `json:"test_accuracy"` // 0 to 1
	Epochs       int      `json:"epochs"`        // finished
	Loss         []number `json:"loss"`          // means of the epochs; of an interrupted one so far
	Steps        int      `json:"steps"`
	Seconds      float64  `json:"seconds"` // of training and testing
	Interrupted  bool     `json:"interrupted"`

	TrainSeconds    float64 `json:"train_seconds"`     // of training alone
	DataWaitSeconds float64 `json:"data_wait_seconds"` // of these, waiting for data

	Memory             trace.Summary `json:"memory"` // per training step; in bytes and ns
	MemoryAllocated    int64         `json:"memory_allocated"`
	MaxMemoryAllocated int64         `json:"max_memory_allocated"`
	MemoryReserved     int64         `json:"memory_reserved"`
	MaxMemoryReserved  int64         `json:"max_memory_reserved"`
	Peaks              []int64       `json:"max_memory_allocated_by_rank,omitempty"`

	seen    metric.Matrix // of the last test; nil: there was none
	trained bool          // without an error, whether or not its files could be written
}

// number is a float64 that may be NaN or infinite, such as the loss of a training that diverged.
type number float64

// MarshalJSON writes null for NaN and infinities, because JSON has no such numbers.
func (n number) MarshalJSON() ([]byte, error) {
	if f := float64(n); math.IsNaN(f) || math.IsInf(f, 0) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(n))
}

// measure sets the memory figures.
func (r *result) measure(t *trainer) {
	r.Steps = t.place.Step
	r.Memory = t.profiler.Summary()
	cache := t.env.Cache()
	r.MemoryAllocated, r.MaxMemoryAllocated = cache.MemoryAllocated(), cache.MaxMemoryAllocated()
	r.MemoryReserved, r.MaxMemoryReserved = cache.MemoryReserved(), cache.MaxMemoryReserved()
}

// print prints the memory per training step and the allocator's figures.
func (r *result) print(w io.Writer) error {
	fmt.Fprintf(w, "\nmemory per training step\n\n")
	if err := r.Memory.Table(w); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, f := range []struct {
		name  string
		bytes int64
	}{
		{"MemoryAllocated", r.MemoryAllocated}, {"MaxMemoryAllocated", r.MaxMemoryAllocated},
		{"MemoryReserved", r.MemoryReserved}, {"MaxMemoryReserved", r.MaxMemoryReserved},
	} {
		fmt.Fprintf(w, "%-20s %9s  %14s bytes\n", f.name, humanize.IBytes(uint64(f.bytes)), humanize.Comma(f.bytes))
	}
	for rank, bytes := range r.Peaks {
		fmt.Fprintf(w, "%-20s %9s  %14s bytes\n", fmt.Sprintf("peak of rank %d", rank), humanize.IBytes(uint64(bytes)), humanize.Comma(bytes))
	}
	return nil
}

// writeJSON writes the file of -json; "-" is the standard output.
func writeJSON(file string, stdout io.Writer, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("mnist: -json: %w", err)
	}
	put := func(w io.Writer) error {
		_, err := w.Write(append(text, '\n'))
		return err
	}
	if file == "-" {
		return put(stdout)
	}
	if err := output.Write(file, put); err != nil {
		return fmt.Errorf("mnist: -json: %w", err)
	}
	return nil
}

// printConfusion prints a row for each digit: how often the model saw each digit in its pictures,
// and the share of wrong answers.
func printConfusion(w io.Writer, c metric.Matrix) {
	fmt.Fprintf(w, "\ndigit  ")
	for digit := range c {
		fmt.Fprintf(w, "%6d", digit)
	}
	fmt.Fprintf(w, "   misclassified\n")
	for digit, row := range c {
		all := 0
		fmt.Fprintf(w, "%5d  ", digit)
		for _, n := range row {
			all += n
			if n == 0 {
				fmt.Fprintf(w, "%6s", "·")
			} else {
				fmt.Fprintf(w, "%6d", n)
			}
		}
		fmt.Fprintf(w, "   %.1f %%\n", 100*float64(all-row[digit])/float64(max(all, 1)))
	}
}
