package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
)

// weight is a named array of a file.
type weight struct {
	shape []int
	data  []float32
}

// A safetensors file is the length of a header, eight bytes with the lowest first, the header, which is JSON, and the
// numbers.
type entry struct {
	Dtype   string   `json:"dtype"`
	Shape   []int    `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"` // from the end of the header
}

// What a file may have: enough for dense networks, and no more than a wrong file can do harm with.
const (
	maxHeader = 1 << 20
	maxData   = 1 << 30
)

func readFile(name string) (map[string]weight, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	weights, err := readWeights(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return weights, nil
}

func readWeights(r io.Reader) (map[string]weight, error) {
	var length uint64
	if err := binary.Read(r, binary.LittleEndian, &length); err != nil {
		return nil, fmt.Errorf("the header's length: %w", err)
	}
	if length > maxHeader {
		return nil, fmt.Errorf("a header of %d bytes: want at most %d", length, maxHeader)
	}
	header := make([]byte, length)
	if _, err := io.ReadFull(r, header); err != nil {
		return nil, fmt.Errorf("the header: %w", err)
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(header, &raw); err != nil {
		return nil, fmt.Errorf("the header: %w", err)
	}
	delete(raw, "__metadata__")
	data, err := io.ReadAll(io.LimitReader(r, maxData+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxData {
		return nil, fmt.Errorf("more than %d bytes of numbers", maxData)
	}
	weights := make(map[string]weight)
	for name, text := range raw {
		var e entry
		if err := json.Unmarshal(text, &e); err != nil {
			return nil, fmt.Errorf("%q: %w", name, err)
		}
		if weights[name], err = e.weight(data); err != nil {
			return nil, fmt.Errorf("%q: %w", name, err)
		}
	}
	return weights, nil
}

func (e entry) weight(data []byte) (w weight, err error) {
	if e.Dtype != "F32" {
		return w, fmt.Errorf("dtype %q: want F32", e.Dtype)
	}
	n := int64(1)
	for _, d := range e.Shape {
		if d < 1 || int64(d) > maxData/n {
			return w, fmt.Errorf("shape %v: want dimensions of at least 1, and at most %d elements", e.Shape, maxData)
		}
		n *= int64(d)
	}
	from, to := e.Offsets[0], e.Offsets[1]
	if from < 0 || to < from || to > int64(len(data)) || to-from != 4*n {
		return w, fmt.Errorf("bytes %d to %d of %d: want %d bytes for %v", from, to, len(data), 4*n, e.Shape)
	}
	w = weight{e.Shape, make([]float32, n)}
	_, err = binary.Decode(data[from:to], binary.LittleEndian, w.data)
	return w, err
}

func writeFile(name string, weights map[string]weight) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(writeWeights(f, weights), f.Close())
}

func writeWeights(w io.Writer, weights map[string]weight) error {
	names := slices.Sorted(maps.Keys(weights))
	header, from := make(map[string]entry), int64(0)
	for _, name := range names {
		to := from + 4*int64(len(weights[name].data))
		header[name] = entry{"F32", weights[name].shape, [2]int64{from, to}}
		from = to
	}
	text, err := json.Marshal(header)
	if err != nil {
		return err
	}
	err = errors.Join(binary.Write(w, binary.LittleEndian, uint64(len(text))), binary.Write(w, binary.LittleEndian, text))
	for _, name := range names {
		err = errors.Join(err, binary.Write(w, binary.LittleEndian, weights[name].data))
	}
	return err
}

// randomWeights are those of a network with the given widths, the same in every run.
func randomWeights(widths ...int) map[string]weight {
	random := rand.New(rand.NewPCG(1, 0))
	weights := make(map[string]weight)
	for i, inputs := range widths[:len(widths)-1] {
		outputs, bound := widths[i+1], 1/math.Sqrt(float64(inputs))
		draw := func(n int) []float32 {
			s := make([]float32, n)
			for i := range s {
				s[i] = float32((2*random.Float64() - 1) * bound)
			}
			return s
		}
		weights[fmt.Sprintf("%d.weight", 2*i)] = weight{[]int{outputs, inputs}, draw(outputs * inputs)}
		weights[fmt.Sprintf("%d.bias", 2*i)] = weight{[]int{outputs}, draw(outputs)}
	}
	return weights
}
