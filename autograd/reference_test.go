package autograd_test

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// Results and gradients are compared with PyTorch's, which testdata/reference holds: the files
// ops*.json.gz have cases of single operations, computed in float64 on a CPU. The environment
// variable CISTERN_REFERENCE names a folder of the same form to use instead, with other seeds,
// shapes and arguments.

// referenceFolder returns the folder of the cases.
func referenceFolder() string {
	if name := os.Getenv("CISTERN_REFERENCE"); name != "" {
		return name
	}
	return filepath.Join("testdata", "reference")
}

// refNumber is a number of the file, in which those that are not finite are strings.
type refNumber float64

func (n *refNumber) UnmarshalJSON(b []byte) error {
	if string(b) == "true" || string(b) == "false" { // of a mask
		*n = refNumber(len("false") - len(b))
		return nil
	}
	v, err := strconv.ParseFloat(strings.Trim(string(b), `"`), 64)
	*n = refNumber(v)
	return err
}

// referenceArray is a tensor of the file.
type referenceArray struct {
	Shape  []int
	Values []refNumber
	Int    bool
}

// referenceCase is one operation, with its arguments and PyTorch's results.
type referenceCase struct {
	Op       string
	Args     map[string]any
	Inputs   map[string]referenceArray
	Output   [2]json.RawMessage // the shape and the values
	SeedGrad []refNumber        `json:"seed_grad"`
	Grads    map[string][]refNumber
	Running  map[string]json.RawMessage
	Last     [][]refNumber
	// StepGrads are the gradients of each step of an optimiser.
	StepGrads [][][]refNumber `json:"step_grads"`
}

// referenceRun is a case on a tape in one dtype.
type referenceRun struct {
	*referenceCase
	t      testing.TB
	b      *tapetest.Bench
	tape   *autograd.Tape
	dtype  tensor.Dtype
	leaves map[string]*autograd.Variable
}

// referenceOps compute operations on the run's tape. Those without such a result return nil, and
// compare by themselves.
var referenceOps = map[string]func(r *referenceRun) *autograd.Variable{}

func TestReference(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(referenceFolder(), "ops*.json.gz"))
	require.NoError(t, err)
	var cases []referenceCase
	for _, name := range files {
		var file struct{ Cases []referenceCase }
		readReference(t, filepath.Base(name), &file)
		cases = append(cases, file.Cases...)
	}
	require.NotEmpty(t, cases)
	shared := tapetest.Open(t, 1<<30) // a device for each case takes longer than its operations
	for i, c := range cases {
		for _, dtype := range []tensor.Dtype{tensor.Float32, tensor.Float64} {
			t.Run(fmt.Sprintf("%d_%s/%v", i, c.Op, dtype), func(t *testing.T) {
				op := referenceOps[c.Op]
				require.NotNil(t, op, "there is no operation %q", c.Op)
				b := *shared
				b.T = t
				t.Cleanup(func() {
					live, _ := b.RT.Live()
					assert.Zero(t, live, "live tensors")
				})
				r := &referenceRun{referenceCase: &c, t: t, b: &b, tape: autograd.NewTape(b.Ctx, b.RT), dtype: dtype, leaves: map[string]*autograd.Variable{}}
				defer func() { require.NoError(t, r.tape.Close()) }()
				if y := op(r); y != nil {
					r.compare(y)
				}
			})
		}
	}
}

func readReference(t testing.TB, name string, to any) {
	t.Helper()
	f, err := os.Open(filepath.Join(referenceFolder(), name))
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	require.NoError(t, json.NewDecoder(z).Decode(to))
}

// in brings an input of the case to the tape, as a leaf if the case has its gradient. Whole numbers
// are int32.
func (r *referenceRun) in(name string) *autograd.Variable {
	r.t.Helper()
	if v := r.leaves[name]; v != nil {
		return v
	}
	a, ok := r.Inputs[name]
	require.True(r.t, ok, "there is no input %q", name)
	if a.Int {
		return r.tape.Reshape(autograd.Upload(r.tape, convert[int32](a.Values)), a.Shape...)
	}
	x := r.upload(a.Values, a.Shape...)
	defer func() { require.NoError(r.t, x.Release()) }()
	if _, ok := r.Grads[name]; !ok {
		return r.tape.Input(x)
	}
	r.leaves[name] = r.tape.Leaf(x)
	return r.leaves[name]
}

// optional is in, or nil if the case has no such input.
func (r *referenceRun) optional(name string) *autograd.Variable {
	if _, ok := r.Inputs[name]; !ok {
		return nil
	}
	return r.in(name)
}

func (r *referenceRun) upload(values []refNumber, shape ...int) *tensor.Tensor {
	r.t.Helper()
	var x *tensor.Tensor
	var err error
	if r.dtype == tensor.Float32 {
		x, err = tensor.FromSlice(r.b.Ctx, r.b.RT, convert[float32](values))
	} else {
		x, err = tensor.FromSlice(r.b.Ctx, r.b.RT, convert[float64](values))
	}
	require.NoError(r.t, err)
	defer func() { require.NoError(r.t, x.Release()) }()
	shaped, err := r.b.RT.Reshape(r.b.Ctx, x, shape...) // FromSlice makes no scalar
	require.NoError(r.t, err)
	return shaped
}

func convert[T float32 | float64 | int32](values []refNumber) []T {
	to := make([]T, len(values))
	for i, v := range values {
		to[i] = T(v)
	}
	return to
}

// Arguments of the case. A missing one has the standard value.

func (r *referenceRun) float(name string, standard float64) float64 {
	v, ok := r.Args[name].(float64)
	if !ok {
		return standard
	}
	return v
}

func (r *referenceRun) int(name string, standard int) int {
	return int(r.float(name, float64(standard)))
}

func (r *referenceRun) bool(name string, standard bool) bool {
	v, ok := r.Args[name].(bool)
	if !ok {
		return standard
	}
	return v
}

func (r *referenceRun) string(name, standard string) string {
	v, ok := r.Args[name].(string)
	if !ok {
		return standard
	}
	return v
}

// ints is a list, or one number.
func (r *referenceRun) ints(name string) []int {
	switch v := r.Args[name].(type) {
	case float64:
		return []int{int(v)}
	case []any:
		var all []int
		for _, n := range v {
			all = append(all, int(n.(float64)))
		}
		return all
	}
	return nil
}

// compare is for the result: its values, and the gradients of the sum of its products with the
// seed.
func (r *referenceRun) compare(y *autograd.Variable) {
	r.t.Helper()
	require.NoError(r.t, r.tape.Err())
	var shape []int
	require.NoError(r.t, json.Unmarshal(r.Output[0], &shape))
	require.Equal(r.t, append([]int{}, shape...), append([]int{}, y.Shape()...), "the result's shape")
	r.same("the result", y.Value(), r.output())
	if len(r.Grads) == 0 {
		return
	}
	seed := r.upload(r.SeedGrad, shape...)
	defer func() { require.NoError(r.t, seed.Release()) }()
	_, err := r.tape.Backward(r.tape.Sum(r.tape.Mul(y, r.tape.Input(seed))))
	require.NoError(r.t, err)
	for name, want := range r.Grads {
		leaf := r.leaves[name]
		require.NotNil(r.t, leaf, "the operation does not read %q", name)
		require.NotNil(r.t, leaf.Grad(), "%q has no gradient", name)
		r.same("the gradient of "+name, leaf.Grad(), want)
	}
}

// output is the values of the result.
func (r *referenceRun) output() (want []refNumber) {
	r.t.Helper()
	require.NoError(r.t, json.Unmarshal(r.Output[1], &want))
	return want
}

// same compares a tensor with PyTorch's, to 1e-9 of its greatest number in float64, and to 1e-4 in
// float32.
func (r *referenceRun) same(what string, got *tensor.Tensor, want []refNumber) {
	r.t.Helper()
	var values []float64
	switch got.Dtype() {
	case tensor.Float32:
		s, err := tensor.ToSlice[float32](r.b.Ctx, got, nil)
		require.NoError(r.t, err)
		for _, v := range s {
			values = append(values, float64(v))
		}
	default:
		s, err := tensor.ToSlice[float64](r.b.Ctx, got, nil)
		require.NoError(r.t, err)
		values = s
	}
	r.close(what, values, want)
}

func (r *referenceRun) close(what string, got []float64, want []refNumber) {
	r.t.Helper()
	tolerance := 1e-9
	if r.dtype == tensor.Float32 {
		tolerance = 1e-4
	}
	requireClose(r.t, what, got, want, tolerance)
}

// requireClose requires every |got - want| to be at most tolerance times the greatest |want|.
// Numbers that are all below 1e-12 are 0 except for rounding: they are compared as if the greatest
// were 1.
func requireClose(t testing.TB, what string, got []float64, want []refNumber, tolerance float64) {
	t.Helper()
	require.Len(t, got, len(want), what)
	greatest := 0.0
	for _, v := range want {
		if a := math.Abs(float64(v)); a > greatest && !math.IsInf(a, 0) {
			greatest = a
		}
	}
	if greatest < 1e-12 {
		greatest = 1
	}
	for i, v := range want {
		w, g := float64(v), got[i]
		if w == g || (math.IsNaN(w) && math.IsNaN(g)) || math.Abs(w-g) <= tolerance*greatest {
			continue
		}
		t.Fatalf("%s: element %d is %v, and PyTorch's is %v: they differ by %.3g of the greatest, %v", what, i, g, w, math.Abs(w-g)/greatest, greatest)
	}
}
