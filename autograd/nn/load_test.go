package nn_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/safetensors"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// entries is a source in memory. A tensor without data has no reader.
type entries []entry

type entry struct {
	name, dtype string
	shape       []int
	data        []byte
}

func (s entries) Tensors() (all []safetensors.Info) {
	for _, e := range s {
		all = append(all, safetensors.Info{Name: e.name, Dtype: e.dtype, Shape: e.shape})
	}
	return all
}

func (s entries) Reader(name string) (io.Reader, error) {
	for _, e := range s {
		if e.name == name && e.data != nil {
			return bytes.NewReader(e.data), nil
		}
	}
	return nil, fmt.Errorf("%q: %w", name, safetensors.ErrMissing)
}

// floats is an entry of float32.
func floats(name string, shape []int, numbers ...float32) entry {
	data := []byte{}
	for _, x := range numbers {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(x))
	}
	return entry{name, "F32", shape, data}
}

// pair is a model of two matrices.
type pair struct{ A, B *autograd.Parameter }

func newPair(b *tapetest.Bench) pair {
	zeros := func(shape ...int) *autograd.Parameter {
		x, err := b.RT.Zeros(b.Ctx, tensor.Float32, shape...)
		require.NoError(b.T, err)
		b.T.Cleanup(func() { require.NoError(b.T, x.Release()) })
		return b.ParameterOf(x)
	}
	return pair{zeros(2, 3), zeros(2)}
}

func (p pair) numbers(b *tapetest.Bench) [][]float32 {
	return [][]float32{tapetest.Read[float32](b, p.A.Value()), tapetest.Read[float32](b, p.B.Value())}
}

var (
	unloaded = [][]float32{{0, 0, 0, 0, 0, 0}, {0, 0}}
	loadedAs = [][]float32{{1, 2, 3, 4, 5, 6}, {7, 8}}
)

// TestLoadWeightsRenames: prefixes are cut off and added, tensors are left out, and two for one
// name of the model are an error.
func TestLoadWeightsRenames(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	plain := func(prefix string) entries {
		return entries{floats(prefix+"a", []int{2, 3}, 1, 2, 3, 4, 5, 6), floats(prefix+"b", []int{2}, 7, 8)}
	}
	for _, c := range []struct {
		source entries
		model  func(pair) any
		rename func(string) string
	}{
		{plain("model."), func(p pair) any { return p }, func(name string) string { return strings.TrimPrefix(name, "model.") }},
		{plain(""), func(p pair) any { return struct{ Body pair }{p} }, func(name string) string { return "body." + name }},
		{append(plain(""), floats("rotary.inv_freq", []int{1}, 9)), func(p pair) any { return p }, func(name string) string {
			if strings.HasSuffix(name, "inv_freq") {
				return ""
			}
			return name
		}},
	} {
		p := newPair(b)
		_, err := nn.LoadWeights(b.Ctx, c.model(p), c.source)
		require.ErrorIs(t, err, safetensors.ErrState)
		require.Equal(t, unloaded, p.numbers(b))
		report, err := nn.LoadWeights(b.Ctx, c.model(p), c.source, nn.Rename(c.rename), nil)
		require.NoError(t, err)
		require.Equal(t, loadedAs, p.numbers(b))
		require.Len(t, report.Loaded, 2)
		require.Equal(t, c.source[1].name, report.Loaded[1].From)
		require.Len(t, report.LeftOut, len(c.source)-2)
	}
	p := newPair(b)
	_, err := nn.LoadWeights(b.Ctx, p, plain(""), nn.Rename(func(string) string { return "b" }))
	require.ErrorIs(t, err, autograd.ErrInvalid)
	require.ErrorContains(t, err, `"a" and "b" of the source are both "b" of the model`)
	require.Equal(t, unloaded, p.numbers(b))
	for _, opt := range []nn.LoadOption{nn.Rename(nil), nn.Transpose(nil)} {
		_, err = nn.LoadWeights(b.Ctx, p, plain(""), opt)
		require.ErrorIs(t, err, autograd.ErrInvalid)
	}
	_, err = nn.LoadWeights(b.Ctx, p, (*safetensors.File)(nil))
	require.ErrorIs(t, err, autograd.ErrInvalid)
}

// TestLoadWeightsTransposes random matrices of all dtypes.
func TestLoadWeightsTransposes(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	random := rand.New(rand.NewPCG(5, 6))
	for range 20 {
		rows, cols := 1+random.IntN(9), 1+random.IntN(9)
		source, want := entries{}, make([]float32, rows*cols)
		numbers := make([]float32, rows*cols)
		for i := range rows {
			for j := range cols {
				x := float32(random.IntN(100))
				numbers[i*cols+j], want[j*rows+i] = x, x
			}
		}
		for _, dtype := range []string{"F64", "F32", "F16", "BF16"} {
			e := entry{dtype, dtype, []int{rows, cols}, []byte{}}
			for _, x := range numbers {
				switch dtype {
				case "F64":
					e.data = binary.LittleEndian.AppendUint64(e.data, math.Float64bits(float64(x)))
				case "F32":
					e.data = binary.LittleEndian.AppendUint32(e.data, math.Float32bits(x))
				case "F16":
					e.data = binary.LittleEndian.AppendUint16(e.data, uint16(tensor.ToF16(x)))
				case "BF16":
					e.data = binary.LittleEndian.AppendUint16(e.data, uint16(tensor.ToBF16(x)))
				}
			}
			source = append(source, e)
		}
		p := newPair(b)
		x, err := b.RT.Zeros(b.Ctx, tensor.Float32, cols, rows)
		require.NoError(t, err)
		p.A = b.ParameterOf(x)
		for _, e := range source {
			report, err := nn.LoadWeights(b.Ctx, struct{ A *autograd.Parameter }{p.A}, entries{e}, nn.Rename(func(string) string { return "a" }),
				nn.Transpose(func(name string) bool { return name == e.name }))
			require.NoError(t, err)
			require.True(t, report.Loaded[0].Transposed)
			require.Equal(t, want, tapetest.Read[float32](b, x), e.dtype)
			require.NoError(t, b.RT.Zero(b.Ctx, x))
		}
		require.NoError(t, x.Release())
	}
	p := newPair(b)
	vector := entries{floats("a", []int{2, 3}, 1, 2, 3, 4, 5, 6), floats("b", []int{2}, 7, 8)}
	_, err := nn.LoadWeights(b.Ctx, p, vector, nn.Transpose(func(string) bool { return true }))
	require.ErrorContains(t, err, "2 of another shape or dtype: a: F32 (2, 3), transposed, as float32 (2, 3) (see nn.Transpose); b: F32 (2), transposed, as float32 (2) (see nn.Transpose)")
}

// TestLoadWeightsConverts: numbers of each float dtype become those of each other one, rounded
// once; whole numbers stay.
func TestLoadWeightsConverts(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	model := struct {
		F64 *autograd.Parameter
		F32 *autograd.Parameter
		F16 *tensor.Tensor `buffer:"f16"`
		B16 *tensor.Tensor `buffer:"b16"`
		I64 *tensor.Tensor `buffer:"i64"`
	}{b.ParameterOf(tapetest.Upload(b, make([]float64, 2))), b.ParameterOf(tapetest.Upload(b, make([]float32, 2))), tapetest.Upload(b, make([]tensor.F16, 2)),
		tapetest.Upload(b, make([]tensor.BF16, 2)), tapetest.Upload(b, make([]int64, 2))}
	tie := 1 + 0x1p-8 + 0x1p-40 // float32 has no such number, and 1+0x1p-8 is a tie of bfloat16
	for _, c := range []struct {
		dtype string
		data  []byte
		want  [2]float64
		b16   [2]tensor.BF16
		f16   [2]tensor.F16
	}{
		{"F64", binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, math.Float64bits(tie)), math.Float64bits(0.1)), [2]float64{tie, 0.1}, [2]tensor.BF16{0x3f81, 0x3dcd}, [2]tensor.F16{0x3c04, 0x2e66}},
		{"F32", binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, math.Float32bits(1+0x1p-8)), math.Float32bits(0.1)), [2]float64{1 + 0x1p-8, float64(float32(0.1))}, [2]tensor.BF16{0x3f80, 0x3dcd}, [2]tensor.F16{0x3c04, 0x2e66}},
		{"F16", []byte{0x04, 0x3c, 0x66, 0x2e}, [2]float64{1 + 0x1p-8, 0x1.998p-4}, [2]tensor.BF16{0x3f80, 0x3dcd}, [2]tensor.F16{0x3c04, 0x2e66}},
		{"BF16", []byte{0x81, 0x3f, 0xcd, 0x3d}, [2]float64{1 + 0x1p-7, 0x1.9ap-4}, [2]tensor.BF16{0x3f81, 0x3dcd}, [2]tensor.F16{0x3c08, 0x2e68}},
	} {
		whole := entry{"i64", "I64", []int{2}, binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, 1<<60+1), 5)}
		source := entries{whole}
		for _, name := range []string{"f64", "f32", "f16", "b16"} {
			source = append(source, entry{name, c.dtype, []int{2}, c.data})
		}
		report, err := nn.LoadWeights(b.Ctx, model, source)
		require.NoError(t, err)
		require.Equal(t, c.want[:], tapetest.Read[float64](b, model.F64.Value()), c.dtype)
		require.Equal(t, []float32{float32(c.want[0]), float32(c.want[1])}, tapetest.Read[float32](b, model.F32.Value()), c.dtype)
		require.Equal(t, c.b16[:], tapetest.Read[tensor.BF16](b, model.B16), c.dtype)
		require.Equal(t, c.f16[:], tapetest.Read[tensor.F16](b, model.F16), c.dtype)
		require.Equal(t, []int64{1<<60 + 1, 5}, tapetest.Read[int64](b, model.I64))
		require.Contains(t, report.String(), "  f32: "+c.dtype+" (2), as float32 (2)\n")

		source[0].dtype = "I32"
		_, err = nn.LoadWeights(b.Ctx, model, source)
		require.ErrorContains(t, err, "1 of another shape or dtype: i64: I32 (2), as int64 (2)")
		source[0].dtype = "F8_E4M3"
		_, err = nn.LoadWeights(b.Ctx, model, source)
		require.ErrorContains(t, err, "i64: F8_E4M3 (2), as int64 (2)")
	}
}

// TestLoadWeightsPartially: the error of a strict load lists a few names, with counts, and nothing
// changes. Partial loads the tensors that match. The report has all names.
func TestLoadWeightsPartially(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p := newPair(b)
	model := struct {
		Pair pair
		More [7]*autograd.Parameter
	}{Pair: p}
	for i := range model.More {
		model.More[i] = b.Number(1)
	}
	source := entries{floats("pair.a", []int{3, 2}, 1, 2, 3, 4, 5, 6), floats("pair.b", []int{2}, 7, 8)}
	for i := range 6 {
		source = append(source, floats(fmt.Sprintf("x.%d", i), []int{1}, 1))
	}
	report, err := nn.LoadWeights(b.Ctx, model, source)
	require.ErrorIs(t, err, safetensors.ErrState)
	require.EqualError(t, err, `nn: LoadWeights: error(s) in loading state_dict: missing 7 of the model's 9 names: "more.0", "more.1", "more.2", "more.3", "more.4" and 2 more; `+
		`unexpected 6 of the source's 8 names: "x.0", "x.1", "x.2", "x.3", "x.4" and 1 more; 1 of another shape or dtype: pair.a: F32 (3, 2), as float32 (2, 3) (see nn.Transpose)`)
	require.Equal(t, unloaded, p.numbers(b))
	require.Equal(t, "x.5", report.Unexpected[5])
	require.Empty(t, report.Loaded)

	report, err = nn.LoadWeights(b.Ctx, model, source, nn.Partial(), nn.Rename(func(name string) string {
		if strings.HasPrefix(name, "x.") && name != "x.5" {
			return ""
		}
		return name
	}))
	require.NoError(t, err)
	require.Equal(t, [][]float32{unloaded[0], loadedAs[1]}, p.numbers(b))
	require.Equal(t, `loaded: 1
  pair.b: F32 (2), as float32 (2)
missing in the source: 7
  more.0
  more.1
  more.2
  more.3
  more.4
  more.5
  more.6
unexpected in the source: 1
  x.5
left out: 5
  x.0
  x.1
  x.2
  x.3
  x.4
of another shape or dtype: 1
  pair.a: F32 (3, 2), as float32 (2, 3)
`, report.String())
	_, err = nn.LoadWeights(b.Ctx, model, source[2:], nn.Partial())
	require.ErrorIs(t, err, safetensors.ErrState, "nothing is loaded")
}

// TestLoadWeightsTied: one of a parameter's two names is enough, and two must have equal numbers.
// They are loaded once.
func TestLoadWeightsTied(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p := newPair(b)
	model := struct{ A, Head, B *autograd.Parameter }{p.A, p.A, p.B}
	a, head, last := floats("a", []int{2, 3}, 1, 2, 3, 4, 5, 6), floats("head", []int{2, 3}, 1, 2, 3, 4, 5, 6), floats("b", []int{2}, 7, 8)
	for _, source := range []entries{{a, last}, {head, last}, {a, head, last}, {head, last, a}} {
		require.NoError(t, b.RT.Zero(b.Ctx, p.A.Value()))
		version := p.A.Value().Version()
		report, err := nn.LoadWeights(b.Ctx, model, source)
		require.NoError(t, err)
		require.Equal(t, loadedAs, p.numbers(b))
		require.Empty(t, report.Missing)
		require.Equal(t, version+1, p.A.Value().Version(), "it is loaded once")
		if len(source) == 3 {
			require.Equal(t, "a", report.Loaded[1].TiedTo)
			require.Contains(t, report.String(), "  head: F32 (2, 3), the same parameter as a, as float32 (2, 3)\n")
		}
	}
	other := floats("head", []int{2, 3}, 1, 2, 3, 4, 5, 7)
	require.NoError(t, b.RT.Zero(b.Ctx, p.A.Value()))
	for _, opts := range [][]nn.LoadOption{nil, {nn.Partial()}} {
		report, err := nn.LoadWeights(b.Ctx, model, entries{a, other, floats("b", []int{2}, 9, 9)}, opts...)
		require.Empty(t, report.Loaded)
		require.ErrorIs(t, err, safetensors.ErrState)
		require.ErrorContains(t, err, `"a" and "head" of the source have different numbers, and are one parameter of the model`)
		require.Equal(t, [][]float32{unloaded[0], loadedAs[1]}, p.numbers(b), "nothing is loaded")
	}
	_, err := nn.LoadWeights(b.Ctx, model, entries{last})
	require.ErrorContains(t, err, `missing 2 of the model's 3 names: "a", "head"`)
}

// TestLoadWeightsOfABrokenSource: the error names the tensor, and the report those before it.
func TestLoadWeightsOfABrokenSource(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	good, short := floats("a", []int{2, 3}, 1, 2, 3, 4, 5, 6), floats("b", []int{2}, 7)
	for _, c := range []struct {
		broken entry
		want   error
	}{{short, io.ErrUnexpectedEOF}, {entry{"b", "F32", []int{2}, nil}, safetensors.ErrMissing}} {
		p := newPair(b)
		report, err := nn.LoadWeights(b.Ctx, p, entries{good, c.broken})
		require.ErrorIs(t, err, c.want)
		require.ErrorContains(t, err, `"b"`)
		require.Len(t, report.Loaded, 1)
		require.Equal(t, loadedAs[0], p.numbers(b)[0])
	}
	p := newPair(b)
	_, err := nn.LoadWeights(b.Ctx, p, entries{entry{"a", "F32", []int{3, 2}, make([]byte, 20)}, floats("b", []int{2}, 7, 8)}, nn.Transpose(func(name string) bool { return name == "a" }))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	tied := struct{ A, Head *autograd.Parameter }{p.A, p.A}
	_, err = nn.LoadWeights(b.Ctx, tied, entries{good, floats("head", []int{2, 3}, 1)})
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.ErrorContains(t, err, `"head"`)
}

// silent is a source without readers.
type silent struct{ entries }

func (silent) Reader(string) (io.Reader, error) { return nil, nil }

func TestLoadWeightsWithoutAReader(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for _, dtype := range []string{"F32", "F16"} {
		_, err := nn.LoadWeights(b.Ctx, newPair(b), silent{entries{entry{"a", dtype, []int{2, 3}, nil}, entry{"b", dtype, []int{2}, nil}}})
		require.ErrorContains(t, err, "reader is nil", dtype)
	}
}
