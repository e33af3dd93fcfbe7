package safetensors

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
)

func TestRead(t *testing.T) {
	rt := open(t)
	data := file(`{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"none":{"dtype":"F64","shape":[0,7],"data_offsets":[8,8]},`+
		`"mask":{"dtype":"BOOL","shape":[],"data_offsets":[12,13]},"h":{"dtype":"F16","shape":[1,2],"data_offsets":[8,12]}}  `, 13)
	copy(data[len(data)-13:], []byte{0, 0, 128, 63, 0, 0, 0, 192, 0, 60, 0, 252, 1})
	f, err := New(bytes.NewReader(data), int64(len(data)))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	assert.Equal(t, map[string]string{"format": "pt"}, f.Metadata())
	var names []string
	for _, info := range f.Tensors() {
		names = append(names, info.Name)
	}
	assert.Equal(t, []string{"a", "none", "h", "mask"}, names, "in the order of their data")

	load := func(name string) *tensor.Tensor {
		x, err := f.Load(ctx, rt, name)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, x.Release()) })
		return x
	}
	assert.Equal(t, []float32{1, -2}, read[float32](t, load("a")))
	h := load("h")
	assert.Equal(t, []tensor.F16{0x3c00, 0xfc00}, read[tensor.F16](t, h))
	var out bytes.Buffer
	require.NoError(t, Write(ctx, &out, []Named{{"h", h}}, nil))
	assert.Contains(t, out.String(), `"h":{"dtype":"F16","shape":[1,2],"data_offsets":[0,4]}`)
	assert.Equal(t, []byte{0, 60, 0, 252}, out.Bytes()[out.Len()-4:])
	assert.Equal(t, tensor.Shape{1, 2}, h.Shape())
	assert.Equal(t, []uint8{1}, read[uint8](t, load("mask")))
	assert.Equal(t, tensor.Shape{0, 7}, load("none").Shape())

	_, err = f.Load(ctx, rt, "b")
	require.ErrorIs(t, err, ErrMissing)
	_, err = f.Load(ctx, nil, "a")
	require.ErrorIs(t, err, ErrInvalid)
	x := upload(t, rt, []float32{0, 0, 0})
	require.ErrorIs(t, f.LoadInto(ctx, "a", x), tensor.ErrShape)
	require.ErrorIs(t, f.LoadInto(ctx, "mask", x), tensor.ErrDtype)
	require.ErrorIs(t, f.LoadInto(ctx, "a", nil), ErrInvalid)
	require.ErrorIs(t, f.LoadInto(ctx, "b", x), ErrMissing)
}

// TestRefuse: invalid files are refused, each with its fault.
func TestRefuse(t *testing.T) {
	overflow := "a shape of at most 2^63-1 bytes"
	if math.MaxInt < math.MaxInt64 { // the dimension itself is too large
		overflow = "has a dimension of"
	}
	one := `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"nothing":               {nil, "it has 0 bytes"},
		"half a length":         {[]byte{1, 0, 0}, "it has 3 bytes"},
		"a header beyond":       {binary.LittleEndian.AppendUint64(nil, 1), "was it cut off"},
		"a negative length":     {binary.LittleEndian.AppendUint64(nil, 1<<63), "was it cut off"},
		"a large header":        {file(strings.Repeat(" ", 101), 0), "more than the limit of 100"},
		"no header":             {file("", 0), "not a JSON object"},
		"no object":             {file("[]", 0), "not a JSON object"},
		"a space before":        {file(" {}", 0), "not a JSON object"},
		"no UTF-8":              {file("{\"\xff\":1}", 0), "not a JSON object"},
		"no JSON":               {file("{a}", 0), "the header"},
		"a number as name":      {file(`{1:{}}`, 0), "the header"},
		"half an object":        {file(`{"a":`, 0), "the header"},
		"two objects":           {file("{}{}", 0), "continues after its object"},
		"a name twice":          {file(`{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"\u0061":1}`, 0), `"a" appears twice`},
		"no tensor":             {file(`{"a":1}`, 0), "want an object"},
		"a key twice":           {file(`{"a":{"shape":[],"shape":[]}}`, 0), `"shape" of tensor "a" appears twice`},
		"another key":           {file(`{"a":{"stride":[]}}`, 0), "none of dtype"},
		"no offsets":            {file(`{"a":{"dtype":"U8","shape":[0]}}`, 0), "two data_offsets"},
		"one offset":            {file(`{"a":{"dtype":"U8","shape":[0],"data_offsets":[0]}}`, 0), "two data_offsets"},
		"a new dtype's hole":    {file(`{"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}}`, 4), "without holes"},
		"a new dtype's end":     {file(`{"a":{"dtype":"F4","shape":[4],"data_offsets":[2,0]}}`, 2), "from byte 2 to 0"},
		"a new dtype's shape":   {file(`{"a":{"dtype":"F4","shape":[4611686018427387904,4],"data_offsets":[0,2]}}`, 2), overflow},
		"a dtype of numbers":    {file(`{"a":{"dtype":[1,2],"shape":[0],"data_offsets":[0,0]}}`, 0), "not a string"},
		"a negative dimension":  {file(`{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}`, 1), "not a number of elements"},
		"half a dimension":      {file(`{"a":{"dtype":"U8","shape":[0.5],"data_offsets":[0,1]}}`, 1), "not a number of elements"},
		"a text as dimension":   {file(`{"a":{"dtype":"U8","shape":["1"],"data_offsets":[0,1]}}`, 1), "not a number of elements"},
		"a nested dimension":    {file(`{"a":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}}`, 1), "not a number of elements"},
		"a shape of no array":   {file(`{"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}}`, 1), "want an array"},
		"many dimensions":       {file(`{"a":{"dtype":"U8","shape":[`+strings.Repeat("1,", 64)+`1],"data_offsets":[0,1]}}`, 1), "more than 64"},
		"more than an int":      {file(`{"a":{"dtype":"U8","shape":[9223372036854775807,3],"data_offsets":[0,1]}}`, 1), overflow},
		"too few bytes":         {file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,7]}}`, 7), "instead of 8 bytes"},
		"an end before":         {file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}`, 8), "from byte 8 to 0: want an end that is not before the beginning"},
		"an unknown end before": {file(`{"a":{"dtype":"X9","shape":[2],"data_offsets":[8,6]}}`, 8), "from byte 8 to 6: want an end that is not before the beginning"},
		"too large a shape":     {file(`{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}}`, 8), overflow},
		"a file that was cut":   {file(one, 7), "was the file cut off"},
		"more than the tensors": {file(one, 9), "the tensors take 8 bytes"},
		"data of nothing":       {file("{}", 1), "the tensors take 0 bytes"},
		"a hole":                {file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}`, 3), "without holes"},
		"an overlap":            {file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3), "without holes"},
		"metadata of a number":  {file(`{"__metadata__":{"a":1}}`, 0), `the metadata of "a" is not a string`},
		"metadata twice":        {file(`{"__metadata__":{"a":"","a":""}}`, 0), "twice in the metadata"},
	} {
		limit := int64(500)
		if name == "a large header" {
			limit = 100
		}
		_, err := New(bytes.NewReader(c.file), int64(len(c.file)), MaxHeader(limit))
		require.ErrorIs(t, err, ErrFormat, name)
		require.ErrorContains(t, err, c.want, name)
	}
	_, err := New(bytes.NewReader(file(one, 8)), 1<<40)
	require.ErrorIs(t, err, ErrFormat)
	_, err = New(bytes.NewReader(nil), 100)
	require.ErrorIs(t, err, io.EOF)
	_, err = Open(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = Open(t.TempDir())
	require.ErrorIs(t, err, ErrFormat)
	short := file(`{"a":{"dtype":"I16","shape":[1],"data_offsets":[0,2]}}`, 2)
	f, err := New(bytes.NewReader(short), int64(len(short)))
	require.NoError(t, err)
	_, err = f.Load(ctx, open(t), "a")
	require.ErrorIs(t, err, tensor.ErrDtype)
}

// TestDtypesThatAreNotComputedIn: a file with such a tensor opens, whether its dtype is known or
// not. Only that tensor can't be loaded, and the error names it.
func TestDtypesThatAreNotComputedIn(t *testing.T) {
	rt := open(t)
	for dtype, size := range map[string]int{"I8": 4, "U16": 8, "F8_E4M3": 4, "F8_E8M0": 4, "F4": 2, "F6_E2M3": 3, "C64": 32, "F31": 5} {
		data := file(fmt.Sprintf(`{"odd":{"dtype":%q,"shape":[4],"data_offsets":[0,%d]},"even":{"dtype":"F32","shape":[2],"data_offsets":[%d,%d]}}`, dtype, size, size, size+8), size+8)
		f, err := New(bytes.NewReader(data), int64(len(data)))
		require.NoError(t, err, dtype)
		info, ok := f.Info("odd")
		require.True(t, ok)
		require.Equal(t, Info{"odd", dtype, []int{4}, 0, int64(size)}, info)
		_, err = f.Load(ctx, rt, "odd")
		require.ErrorIs(t, err, tensor.ErrDtype)
		require.ErrorContains(t, err, `"odd"`)
		require.ErrorContains(t, err, dtype)
		x, err := f.Load(ctx, rt, "even")
		require.NoError(t, err)
		require.ErrorIs(t, f.LoadInto(ctx, "odd", x), tensor.ErrDtype)
		require.Len(t, read[float32](t, x), 2)
		require.NoError(t, x.Release())
		r, err := f.Reader("odd")
		require.NoError(t, err)
		n, err := io.Copy(io.Discard, r)
		require.NoError(t, err)
		require.Equal(t, int64(size), n)
	}
}

// FuzzRead: no file makes the reader panic, and the tensors of an accepted file can be read.
func FuzzRead(f *testing.F) {
	f.Add(file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{"b":"c"}}`, 8))
	f.Add(file(`{"a":{"dtype":"U8","shape":[2,0],"data_offsets":[0,0]},"b":{"dtype":"BF16","shape":[],"data_offsets":[0,2]}}`, 2))
	f.Add(file(`{"a":{"dtype":[{}],"shape":[[]],"data_offsets":{}}}`, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := New(bytes.NewReader(b), int64(len(b)), MaxHeader(1<<20))
		if err != nil {
			require.ErrorIs(t, err, ErrFormat)
			return
		}
		total := int64(0)
		for _, info := range file.Tensors() {
			r, err := file.Reader(info.Name)
			require.NoError(t, err)
			n, err := io.Copy(io.Discard, r)
			require.NoError(t, err)
			require.Equal(t, info.Bytes, n)
			total += n
			_, ok := file.Info(info.Name)
			require.True(t, ok)
		}
		require.Equal(t, int64(len(b)-8)-int64(binary.LittleEndian.Uint64(b)), total)
	})
}
