package safetensors

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
)

// goldenBF16 is a file by the format's description, byte by byte.
var goldenBF16 = bytes.Join([][]byte{
	{112, 0, 0, 0, 0, 0, 0, 0}, // the header's length
	[]byte(`{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"BF16","shape":[2,4],"data_offsets":[4,20]}} `),
	{0x00, 0x00, 0x20, 0x41}, // 10
	{0x80, 0x3f},             // 1
	{0x00, 0xc0},             // -2
	{0x00, 0x80},             // -0
	{0x80, 0x7f},             // infinite
	{0xc1, 0x7f},             // NaN, quiet, with a payload
	{0x81, 0xff},             // NaN, signalling, negative
	{0x01, 0x00},             // the least number
	{0x7f, 0xff},             // the lowest one
}, nil)

// TestBF16Golden: a file of bfloat16 is read bit-identical, into tensors of bfloat16 and of
// float32, and is written byte-identical.
func TestBF16Golden(t *testing.T) {
	rt := open(t)
	f, err := New(bytes.NewReader(goldenBF16), int64(len(goldenBF16)))
	require.NoError(t, err)
	bits := []tensor.BF16{0x3f80, 0xc000, 0x8000, 0x7f80, 0x7fc1, 0xff81, 0x0001, 0xff7f}
	a, err := f.Load(ctx, rt, "a")
	require.NoError(t, err)
	defer func() { require.NoError(t, a.Release()) }()
	require.Equal(t, tensor.BFloat16, a.Dtype())
	require.Equal(t, tensor.Shape{2, 4}, a.Shape())
	require.Equal(t, bits, read[tensor.BF16](t, a))
	w, err := f.Load(ctx, rt, "w")
	require.NoError(t, err)
	defer func() { require.NoError(t, w.Release()) }()
	require.Equal(t, []float32{10}, read[float32](t, w))

	var out bytes.Buffer
	require.NoError(t, Write(ctx, &out, []Named{{"a", a}, {"w", w}}, nil))
	require.Equal(t, goldenBF16, out.Bytes())
	out.Reset()
	streamed := Streamed{"a", tensor.BFloat16, tensor.Shape{2, 4}, func(ctx context.Context, out io.Writer) error { return tensor.WriteBytes(ctx, a, out) }}
	require.NoError(t, Write(ctx, &out, []Named{{"w", w}}, nil, streamed))
	require.Equal(t, goldenBF16, out.Bytes())
}

// TestLoadIntoKeepsDtypes: a tensor of another dtype is an error that changes nothing.
func TestLoadIntoKeepsDtypes(t *testing.T) {
	rt := open(t)
	data := file(`{"b":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]},"h":{"dtype":"F16","shape":[1],"data_offsets":[2,4]},`+
		`"s":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},"i":{"dtype":"I16","shape":[1],"data_offsets":[8,10]}}`, 10)
	f, err := New(bytes.NewReader(data), int64(len(data)))
	require.NoError(t, err)
	into := map[string]*tensor.Tensor{
		"bfloat16": upload(t, rt, []tensor.BF16{1}), "float16": upload(t, rt, []tensor.F16{1}), "float32": upload(t, rt, []float32{1}),
		"float64": upload(t, rt, []float64{1}), "uint8": upload(t, rt, []uint8{1}),
	}
	for name, dtype := range map[string]string{"b": "bfloat16", "h": "float16", "s": "float32", "i": ""} {
		for of, x := range into {
			version := x.Version()
			err := f.LoadInto(ctx, name, x)
			if of == dtype {
				require.NoError(t, err)
				continue
			}
			require.ErrorIs(t, err, tensor.ErrDtype, "%s into %s", name, of)
			require.Equal(t, version, x.Version())
		}
	}
	err = f.LoadInto(ctx, "s", into["bfloat16"])
	require.EqualError(t, err, `safetensors: "s": `+tensor.ErrDtype.Error()+`: the file has F32, and the tensor is bfloat16: want float32, see tensor.Runtime.Convert`)
}

// TestBF16Offloaded: offloaded tensors are written from host memory and read into it, piece by
// piece.
func TestBF16Offloaded(t *testing.T) {
	rt := open(t)
	random := rand.New(rand.NewPCG(7, 8))
	const n = 700_001 // not a multiple of a piece of pinned memory, nor of an upcast
	want := make([]tensor.BF16, n)
	for i := range want {
		want[i] = tensor.BF16(random.Uint32())
	}
	x := upload(t, rt, want)
	var whole bytes.Buffer
	require.NoError(t, Write(ctx, &whole, []Named{{"x", x}}, nil))
	f, err := New(bytes.NewReader(whole.Bytes()), int64(whole.Len()))
	require.NoError(t, err)
	for _, away := range []bool{false, true} {
		narrow := upload(t, rt, make([]tensor.BF16, n))
		if away {
			o, err := tensor.NewOffloader(rt, tensor.OffloadConfig{})
			require.NoError(t, err)
			moved, err := o.Offload(ctx, narrow)
			require.NoError(t, err)
			require.True(t, moved && narrow.Offloaded())
		}
		require.NoError(t, f.LoadInto(ctx, "x", narrow))
		var again bytes.Buffer
		require.NoError(t, Write(ctx, &again, []Named{{"x", narrow}}, nil))
		require.True(t, bytes.Equal(whole.Bytes(), again.Bytes()), "away: %v", away)
	}
}
