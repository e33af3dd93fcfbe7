package gorgonia_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	g "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/tensor/gorgonia"
)

// These tests show what gorgonia.org/tensor does with memory that the host can't access, call by
// call: the behaviour and the limits that the documentation of DeviceEngine describes.

// fatal are the calls that crash the program with any engine. They are tried in a child process.
var fatal = map[string]func(e deviceRig, d, scalar *g.Dense){
	"%v":           func(_ deviceRig, d, _ *g.Dense) { _ = fmt.Sprintf("%v", d) },
	"%+v":          func(_ deviceRig, d, _ *g.Dense) { _ = fmt.Sprintf("%+v", d) },
	"Println":      func(_ deviceRig, d, _ *g.Dense) { fmt.Fprintln(&bytes.Buffer{}, d) },
	"Data":         func(_ deviceRig, d, _ *g.Dense) { fmt.Fprint(&bytes.Buffer{}, d.Data().([]float32)[0]) },
	"Data, scalar": func(_ deviceRig, _, s *g.Dense) { _ = s.Data() },
	"ScalarValue":  func(_ deviceRig, _, s *g.Dense) { _ = s.ScalarValue() },
	"Float32s":     func(_ deviceRig, d, _ *g.Dense) { fmt.Fprint(&bytes.Buffer{}, d.Float32s()[1]) },
	"Get":          func(_ deviceRig, d, _ *g.Dense) { _ = d.Get(0) },
	"Set":          func(_ deviceRig, d, _ *g.Dense) { d.Set(0, float32(1)) },
	"Zero":         func(_ deviceRig, d, _ *g.Dense) { d.Zero() },
	"Eq":           func(_ deviceRig, d, _ *g.Dense) { _ = d.Eq(g.New(g.WithShape(2, 3), g.WithBacking(count(6)))) },
	"GobEncode":    func(_ deviceRig, d, _ *g.Dense) { _, _ = d.GobEncode() },
	"WriteNpy":     func(_ deviceRig, d, _ *g.Dense) { _ = d.WriteNpy(&bytes.Buffer{}) },
	"WriteCSV":     func(_ deviceRig, d, _ *g.Dense) { _ = d.WriteCSV(&bytes.Buffer{}) },
	"Outer":        func(_ deviceRig, d, _ *g.Dense) { v, _ := d.Slice(g.S(0)); _, _ = g.Outer(v, v) },
	"Copy from Go": func(_ deviceRig, d, _ *g.Dense) { _ = g.Copy(d, g.New(g.WithShape(2, 3), g.WithBacking(count(6)))) },
	"CopyTo the engine": func(_ deviceRig, d, _ *g.Dense) {
		_ = g.New(g.WithShape(2, 3), g.WithBacking(count(6))).CopyTo(d)
	},
}

func TestCallsThatEndTheProgram(t *testing.T) {
	if os.Getenv("CISTERN_TEST_DEVICE") != "" && os.Getenv("CISTERN_FATAL") == "" {
		t.Skip("of the host device: a GPU's memory faults in the same way")
	}
	e := newDeviceEngine(t)
	if name := os.Getenv("CISTERN_FATAL"); name != "" {
		defer func() { _ = recover() }() // the fault can't be recovered
		fatal[name](e, put(t, e, count(6), 2, 3), put(t, e, []float32{1}))
		return
	}
	for name := range fatal {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			child := exec.Command(os.Args[0], "-test.run=^TestCallsThatEndTheProgram$")
			child.Env = append(os.Environ(), "CISTERN_FATAL="+name)
			out, err := child.CombinedOutput()
			require.Error(t, err, "%s", out)
			require.Contains(t, string(out), "fault", "it does not end with a fault")
		})
	}
}

func TestCallsThatReturnErrors(t *testing.T) {
	e := newDeviceEngine(t)
	lifetime := e.NewLifetime()
	defer func() { require.NoError(t, lifetime.Close()) }()
	d := put(t, e, count(6), 2, 3)
	host := g.New(g.WithShape(2, 3), g.WithBacking(count(6)))
	errs := map[string]error{}
	_, errs["At"] = d.At(0, 0)
	errs["SetAt"] = d.SetAt(float32(1), 0, 0)
	errs["Memset"] = d.Memset(float32(1))
	_, errs["ToMat64"] = g.ToMat64(d)
	_, errs["StdEng on the left"] = g.StdEng{}.Add(d, host)
	_, errs["StdEng on the right"] = g.StdEng{}.Add(host, d)
	_, errs["StdEng's reuse"] = g.StdEng{}.Add(host, host, g.WithReuse(d))
	for name, err := range errs {
		assert.ErrorContains(t, err, "naccessible", name)
	}
	assert.Equal(t, count(6), get[float32](t, e, d))
}

func TestStringIsSafe(t *testing.T) {
	e := newDeviceEngine(t)
	d := put(t, e, count(6), 2, 3)
	assert.Contains(t, d.String(), "2, 3")
	require.NoError(t, e.Release(d))
}

func TestCloneAndSafeT(t *testing.T) {
	e := newDeviceEngine(t)
	lifetime := e.NewLifetime()
	defer func() { require.NoError(t, lifetime.Close()) }()
	d := put(t, e, count(6), 2, 3)
	c := d.Clone().(*g.Dense)
	assert.Equal(t, count(6), get[float32](t, e, c))
	assert.NotEqual(t, d.Uintptr(), c.Uintptr())
	turned, err := d.SafeT()
	require.NoError(t, err)
	assert.Equal(t, []float32{1, 4, 2, 5, 3, 6}, get[float32](t, e, turned))
	// A view's clone has the memory that the view spans, with the view's strides.
	v, err := d.Slice(nil, g.S(1, 3))
	require.NoError(t, err)
	clone := v.(*g.Dense).Clone().(*g.Dense)
	assert.Equal(t, []float32{2, 3, 5, 6}, get[float32](t, e, clone))
	assert.Equal(t, []int{3, 1}, clone.Strides())
}

func TestMaterialize(t *testing.T) {
	e := newDeviceEngine(t)
	lifetime := e.NewLifetime()
	defer func() { require.NoError(t, lifetime.Close()) }()
	d := put(t, e, count(12), 4, 3)
	rows, err := d.Slice(g.S(1, 3))
	require.NoError(t, err)
	assert.Equal(t, []float32{4, 5, 6, 7, 8, 9}, get[float32](t, e, rows.Materialize().(*g.Dense)), "of a contiguous view")

	columns, err := d.Slice(nil, g.S(1, 3))
	require.NoError(t, err)
	assert.Equal(t, make([]float32, 8), get[float32](t, e, columns.Materialize().(*g.Dense)), "the library's, of a strided one: a limit")
	m, err := e.Materialize(columns.(*g.Dense))
	require.NoError(t, err)
	assert.Equal(t, []float32{2, 3, 5, 6, 8, 9, 11, 12}, get[float32](t, e, m))
	assert.False(t, m.IsMaterializable())

	turned := d.ShallowClone()
	require.NoError(t, turned.T())
	assert.Equal(t, make([]float32, 12), get[float32](t, e, turned.Materialize().(*g.Dense)), "the library's, of a transposed one: a limit")
	m, err = e.Materialize(turned)
	require.NoError(t, err)
	assert.Equal(t, []float32{1, 4, 7, 10, 2, 5, 8, 11, 3, 6, 9, 12}, get[float32](t, e, m))

	same, err := e.Materialize(d)
	require.NoError(t, err)
	assert.Same(t, d, same)
}

func TestTransposeMovesTheData(t *testing.T) {
	e := newDeviceEngine(t)
	d := put(t, e, count(6), 2, 3)
	require.NoError(t, d.T())
	require.NoError(t, d.Transpose())
	assert.Equal(t, []int{2, 1}, d.Strides())
	assert.Equal(t, []float32{1, 4, 2, 5, 3, 6}, get[float32](t, e, d))
	require.NoError(t, d.T())
	require.NoError(t, d.Reshape(6)) // transposes first
	assert.Equal(t, count(6), get[float32](t, e, d))
	require.NoError(t, e.Release(d))
}

func TestTransposeThatFails(t *testing.T) {
	e := newDeviceEngine(t)
	d := put(t, e, count(6), 2, 3)
	alive := put(t, e, count(6), 2, 3)
	turned := d.ShallowClone()
	require.NoError(t, turned.T())
	require.NoError(t, e.Release(d))
	require.NoError(t, turned.Reshape(6), "the library drops the error")
	_, err := g.Add(alive, alive)
	require.ErrorContains(t, err, "Transpose", "so the next operation has it")
	require.ErrorIs(t, err, gorgonia.ErrForeign)
	require.NoError(t, e.Release(alive))
}

func TestCopiesToGoMemory(t *testing.T) {
	e := newDeviceEngine(t)
	d := put(t, e, count(6), 2, 3)
	host := g.New(g.Of(g.Float32), g.WithShape(2, 3))
	require.NoError(t, g.Copy(host, d))
	assert.Equal(t, count(6), host.Data())
	host = g.New(g.Of(g.Float32), g.WithShape(2, 3))
	require.NoError(t, d.CopyTo(host))
	assert.Equal(t, count(6), host.Data())
	require.NoError(t, e.Release(d))
}

func TestIteratorsHaveIndices(t *testing.T) {
	e := newDeviceEngine(t)
	d := put(t, e, count(6), 2, 3)
	it := d.Iterator()
	n := 0
	for _, err := it.Start(); err == nil; _, err = it.Next() {
		n++
	}
	assert.Equal(t, 6, n)
	require.NoError(t, e.Release(d))
}

func TestNoElements(t *testing.T) {
	e := newDeviceEngine(t)
	d, err := e.New(g.Of(g.Float32), g.WithShape(0, 3))
	require.NoError(t, err)
	assert.Panics(t, func() { d.Uintptr() }, "a limit of the library's")
	_, err = g.Add(d, d)
	assert.ErrorIs(t, err, gorgonia.ErrShape)
	_, err = e.ToHost(background, d)
	assert.ErrorIs(t, err, gorgonia.ErrShape)
	require.NoError(t, e.Release(d))
}

func TestBackingWithoutTheEnginesNew(t *testing.T) {
	e := newDeviceEngine(t)
	d := g.New(g.WithShape(2, 3), g.WithBacking(count(6)), g.WithEngine(e.DeviceEngine))
	assert.False(t, d.IsNativelyAccessible())
	_, err := g.Add(d, d)
	assert.ErrorIs(t, err, gorgonia.ErrForeign)
	assert.ErrorContains(t, err, "DeviceEngine.New")
	require.NoError(t, e.Adopt(background, d))
	assert.True(t, d.IsManuallyManaged())
	sum, err := g.Add(d, d)
	require.NoError(t, err)
	assert.Equal(t, []float32{2, 4, 6, 8, 10, 12}, get[float32](t, e, sum.(*g.Dense)))
	require.NoError(t, e.Release(d))
	require.NoError(t, e.Release(sum.(*g.Dense)))
}

func TestFromMemoryOfTheEngine(t *testing.T) {
	e := newDeviceEngine(t)
	d := put(t, e, count(6), 6)
	part := g.New(g.Of(g.Float32), g.WithShape(4), g.WithEngine(e.DeviceEngine), g.FromMemory(d.Uintptr()+8, 16))
	assert.Equal(t, []float32{3, 4, 5, 6}, get[float32](t, e, part))
	assert.Panics(t, func() {
		g.New(g.Of(g.Float32), g.WithShape(4), g.WithEngine(e.DeviceEngine), g.FromMemory(d.Uintptr(), 24))
	}, "the size must be the shape's: a limit of the library's")
	require.NoError(t, e.Release(d))
	_, err := e.ToHost(background, part)
	assert.ErrorIs(t, err, gorgonia.ErrForeign)
}

func TestUnsupportedOperations(t *testing.T) {
	e := newDeviceEngine(t)
	d := put(t, e, count(9), 3, 3)
	indices := put(t, e, []int{0}, 1)
	held := e.allocated()
	errs := map[string]error{}
	_, errs["Map"] = d.Apply(func(f float32) float32 { return f })
	_, errs["Reduce"] = d.Reduce(func(a, b float32) float32 { return a }, 0, float32(0))
	_, errs["OptimizedReduce"] = e.OptimizedReduce(d, 0, nil, nil, nil, nil)
	_, errs["Prod"] = e.Prod(d)
	_, errs["Diag"] = g.Diag(d)
	_, _, _, errs["SVD"] = d.SVD(true, false)
	_, errs["SelectByIndices"] = g.ByIndices(d, indices, 0)
	_, errs["SelectByIndicesB"] = g.ByIndicesB(d, d, indices, 0)
	_, errs["HasNaN"] = e.HasNaN(d)
	_, errs["HasInf"] = e.HasInf(d)
	_, errs["Accessible"] = e.Accessible(d)
	for op, err := range errs {
		assert.ErrorIs(t, err, gorgonia.ErrUnsupported, op)
		assert.ErrorContains(t, err, op)
		if op != "Accessible" {
			assert.ErrorContains(t, err, "float32", op)
		}
	}
	assert.Equal(t, held, e.allocated())
	assert.Equal(t, count(9), get[float32](t, e, d))
	require.NoError(t, e.Release(d))
	require.NoError(t, e.Release(indices))
}
