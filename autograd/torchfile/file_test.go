package torchfile

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd/safetensors"
)

func openTest(t testing.TB, path string) *File {
	f, err := Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return f
}

func bytesOf(t testing.TB, f *File, name string) []byte {
	r, err := f.Reader(name)
	require.NoError(t, err)
	var b bytes.Buffer
	_, err = io.Copy(&b, r)
	require.NoError(t, err)
	return b.Bytes()
}

// numbersOf decodes elements without the package's code.
func numbersOf(dtype string, b []byte) (all []float64) {
	for len(b) > 0 {
		switch dtype {
		case "F64":
			all, b = append(all, math.Float64frombits(binary.LittleEndian.Uint64(b))), b[8:]
		case "F32":
			all, b = append(all, float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))), b[4:]
		case "BF16":
			all, b = append(all, float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b))<<16))), b[2:]
		case "F16": // normal numbers and zero
			v := binary.LittleEndian.Uint16(b)
			x := math.Ldexp(1+float64(v&1023)/1024, int(v>>10&31)-15)
			if v&0x7fff == 0 {
				x = 0
			}
			all, b = append(all, x*(1-2*float64(v>>15))), b[2:]
		case "I64":
			all, b = append(all, float64(int64(binary.LittleEndian.Uint64(b)))), b[8:]
		case "I32":
			all, b = append(all, float64(int32(binary.LittleEndian.Uint32(b)))), b[4:]
		case "I16":
			all, b = append(all, float64(int16(binary.LittleEndian.Uint16(b)))), b[2:]
		case "I8":
			all, b = append(all, float64(int8(b[0]))), b[1:]
		default: // U8, BOOL
			all, b = append(all, float64(b[0])), b[1:]
		}
	}
	return all
}

// TestViews: tensors of all dtypes, and all kinds of views, have the numbers that PyTorch prints.
func TestViews(t *testing.T) {
	text, err := os.ReadFile("testdata/expected.json")
	require.NoError(t, err)
	var want map[string]struct {
		Shape   []int
		Numbers []float64
	}
	require.NoError(t, json.Unmarshal(text, &want))
	f := openTest(t, "testdata/views.pt")
	require.Len(t, f.Tensors(), len(want))
	require.Equal(t, "base", f.Tensors()[0].Name, "in the order of the state dict")
	dtypes := map[string]bool{}
	for _, info := range f.Tensors() {
		dtypes[info.Dtype] = true
		require.Equal(t, want[info.Name].Shape, info.Shape, info.Name)
		b := bytesOf(t, f, info.Name)
		require.Len(t, b, int(info.Bytes), info.Name)
		got := numbersOf(info.Dtype, b)
		require.Equal(t, want[info.Name].Numbers, append([]float64{}, got...), info.Name)
	}
	require.Len(t, dtypes, 10)
	_, err = f.Reader("none")
	require.ErrorIs(t, err, safetensors.ErrMissing)
}

// TestNested: a state dict is found under state_dict and model, and one of plain dicts too.
func TestNested(t *testing.T) {
	names := func(path string) (all []string) {
		for _, info := range openTest(t, path).Tensors() {
			all = append(all, info.Name)
		}
		return all
	}
	require.Equal(t, []string{"0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"}, names("testdata/nested_state_dict.pt"))
	require.Equal(t, []string{"0.weight", "0.bias", "1.weight", "1.bias"}, names("testdata/nested_model.pt"))
}

// TestBigEndian: the numbers of a file from a big-endian machine are swapped.
func TestBigEndian(t *testing.T) {
	little := openTest(t, "testdata/nested_model.pt")
	z, err := zip.OpenReader("testdata/nested_model.pt")
	require.NoError(t, err)
	defer z.Close()
	files := map[string][]byte{"x/byteorder": []byte("big")}
	for _, file := range z.File {
		r, err := file.Open()
		require.NoError(t, err)
		b, err := io.ReadAll(r)
		require.NoError(t, err)
		_, name, _ := strings.Cut(file.Name, "/")
		if strings.HasPrefix(name, "data/") {
			for element := range slices.Chunk(b, 4) {
				slices.Reverse(element)
			}
		}
		files["x/"+name] = b
	}
	big, err := readBytes(packed(t, files, zip.Store))
	require.NoError(t, err)
	for _, info := range little.Tensors() {
		require.Equal(t, bytesOf(t, little, info.Name), bytesOf(t, big, info.Name), info.Name)
	}
	files["x/byteorder"] = []byte("middle")
	_, err = readBytes(packed(t, files, zip.Store))
	require.ErrorContains(t, err, `its byteorder is "middle"`)
}

func readBytes(b []byte) (*File, error) { return read(bytes.NewReader(b), int64(len(b))) }

// packed is a zip archive.
func packed(t testing.TB, files map[string][]byte, method uint16) []byte {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f, err := w.CreateHeader(&zip.FileHeader{Name: name, Method: method})
		require.NoError(t, err)
		_, err = f.Write(files[name])
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}

// archived is a file with a pickle, and a storage "0" of 24 bytes.
func archived(t testing.TB, pickle string) []byte {
	return packed(t, map[string][]byte{"a/data.pkl": []byte(pickle), "a/data/0": make([]byte, 24)}, zip.Store)
}

// The parts of pickles.
func text(s string) string {
	return "X" + string(binary.LittleEndian.AppendUint32(nil, uint32(len(s)))) + s
}

func number(n int) string {
	return "\x8a\x08" + string(binary.LittleEndian.AppendUint64(nil, uint64(n)))
}

func tuple(numbers ...int) string {
	s := "("
	for _, n := range numbers {
		s += number(n)
	}
	return s + "t"
}

func storagePickle(class, key string, n int) string {
	return "(" + text("storage") + "ctorch\n" + class + "\n" + text(key) + text("cpu") + number(n) + "tQ"
}

// tensorPickle is a dict with a tensor.
func tensorPickle(storage, offset, shape, strides string) string {
	return "\x80\x02}" + text("w") + "ctorch._utils\n_rebuild_tensor_v2\n(" + storage + offset + shape + strides + "\x89ccollections\nOrderedDict\n)RtRs."
}

// TestRefuse: pickles that are not a state dict, or have wrong sizes, are refused with the reason.
func TestRefuse(t *testing.T) {
	float := storagePickle("FloatStorage", "0", 6)
	good := tensorPickle(float, number(0), tuple(2, 3), tuple(3, 1))
	f, err := readBytes(archived(t, good))
	require.NoError(t, err)
	require.Equal(t, []safetensors.Info{{Name: "w", Dtype: "F32", Shape: []int{2, 3}, Bytes: 24}}, f.Tensors())
	outside := "its storage has 6"
	huge := math.MaxInt / 2
	for name, c := range map[string]struct {
		pickle string
		want   string
	}{
		"an offset beyond":        {tensorPickle(float, number(1), tuple(2, 3), tuple(3, 1)), outside},
		"a negative offset":       {tensorPickle(float, number(-1), tuple(2), tuple(1)), outside},
		"a huge offset":           {tensorPickle(float, number(huge), tuple(2), tuple(1)), outside},
		"a stride beyond":         {tensorPickle(float, number(0), tuple(2, 3), tuple(4, 1)), outside},
		"a huge stride":           {tensorPickle(float, number(0), tuple(3), tuple(huge)), outside},
		"a stride that wraps":     {tensorPickle(float, number(0), tuple(5), tuple(math.MaxInt/2+1)), outside},
		"a negative stride":       {tensorPickle(float, number(5), tuple(3), tuple(-1)), outside},
		"a negative dimension":    {tensorPickle(float, number(0), tuple(-3, -2), tuple(2, 1)), outside},
		"a huge shape":            {tensorPickle(float, number(0), tuple(huge, huge), tuple(0, 0)), outside},
		"strides of another rank": {tensorPickle(float, number(0), tuple(3), tuple(1, 1)), outside},
		"a large storage":         {tensorPickle(storagePickle("FloatStorage", "0", 7), number(0), tuple(3), tuple(1)), "too few for 7 numbers of F32"},
		"a huge storage":          {tensorPickle(storagePickle("LongStorage", "0", huge), number(0), tuple(3), tuple(1)), "too few"},
		"a negative storage":      {tensorPickle(storagePickle("ByteStorage", "0", -1), number(0), tuple(0), tuple(1)), "too few"},
		"no such storage":         {tensorPickle(storagePickle("FloatStorage", "1", 6), number(0), tuple(3), tuple(1)), `no file "data/1"`},
		"a storage of two dtypes": {strings.TrimSuffix(good, ".") + text("v") + strings.TrimPrefix(tensorPickle(storagePickle("IntStorage", "0", 6), number(0), tuple(3), tuple(1)), "\x80\x02}"+text("w")), "6 numbers of F32, and 6 of I32"},
		"a tensor of a text":      {tensorPickle(text("0"), number(0), tuple(3), tuple(1)), "without storage"},
		"a shape of texts":        {tensorPickle(float, number(0), "("+text("3")+"t", tuple(1)), "without storage"},
		"many dimensions":         {tensorPickle(float, number(0), tuple(make([]int, 33)...), tuple(make([]int, 33)...)), "without storage"},
		"few arguments":           {"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.", "a tensor of 0 values"},
		"a parameter of nothing":  {"\x80\x02ctorch._utils\n_rebuild_parameter\n)R.", "a parameter without a tensor"},
		"a parameter of a text":   {"\x80\x02ctorch._utils\n_rebuild_parameter\n" + text("x") + "\x85R.", "a parameter of string"},
		"another reference":       {"\x80\x02" + text("module") + "Q.", "refers to something that is not a storage"},
		"a storage of no class":   {"\x80\x02(" + text("storage") + text("FloatStorage") + text("0") + text("cpu") + number(1) + "tQ.", "without class"},
		"another class":           {"\x80\x02cposix\nsystem\n" + text("true") + "\x85R.", `the class "posix.system"`},
		"a builtin of the reader": {"\x80\x02c__builtin__\nobject\n.", `the class "__builtin__.object"`},
		"a class without end":     {"\x80\x02cposix\n" + strings.Repeat("x", 600), "does not end"},
		"a call of a text":        {"\x80\x02" + text("x") + ")R.", "is corrupt"},
		"an unhashable key":       {"\x80\x02ccollections\nOrderedDict\n)Rctorch._utils\n_rebuild_tensor_v2\nNs.", "is corrupt"},
		"an empty stack":          {"\x80\x02t.", "is corrupt"},
		"odd items":               {"\x80\x02}(Nu.", "is corrupt"},
		"no end":                  {"\x80\x02}", "without the opcode STOP"},
		"nothing":                 {"", "without the opcode STOP"},
		"half an argument":        {"\x80\x02X\x05", "within the opcode"},
		"a text beyond":           {"\x80\x02X\xff\xff\xff\xffabc", "within the opcode"},
		"a number of no bytes":    {"\x80\x02\x8a\x00.", "of 0 bytes"},
		"another opcode":          {"\x80\x02\x81.", "opcode 0x81"},
		"a number alone":          {"\x80\x02K\x01.", "it has no tensors"},
		"itself":                  {"\x80\x02}q\x00" + text("model") + "h\x00s.", "nested more than 4 times"},
		"much memory":             {"\x80\x02" + strings.Repeat("(", 1<<20) + ".", "more than the limit of 268435456 bytes"},
	} {
		_, err := readBytes(archived(t, c.pickle))
		require.ErrorIs(t, err, ErrFormat, name)
		require.ErrorContains(t, err, c.want, name)
		require.Less(t, len(err.Error()), 600, name)
	}
}

// TestRefuseFiles: files of PyTorch that are refused, and damaged ones.
func TestRefuseFiles(t *testing.T) {
	for name, want := range map[string]string{
		"evil.pt":      `the class "posix.system", which is not of a state dict; in Python: torch.save(model.state_dict(), path)`,
		"legacy.pt":    "the format before PyTorch 1.6; in Python: torch.save(torch.load(path), path)",
		"protocol4.pt": "protocol 4; save it with protocol 2",
		"nothing.pt":   `its keys are "epoch, state"`,
		"script.pt":    "TorchScript program; in Python: torch.save(torch.jit.load(path).state_dict(), path)",
		"write.py":     "not a zip archive",
		".":            "not a regular file",
	} {
		_, err := Open(filepath.Join("testdata", name))
		require.ErrorIs(t, err, ErrFormat, name)
		require.ErrorContains(t, err, want, name)
	}
	_, err := Open("testdata/none")
	require.ErrorIs(t, err, os.ErrNotExist)

	whole, err := os.ReadFile("testdata/views.pt")
	require.NoError(t, err)
	for n := range len(whole) {
		if _, err := readBytes(whole[:n]); err == nil {
			t.Fatalf("%d of %d bytes are taken", n, len(whole))
		}
	}
	pickle := []byte(tensorPickle(storagePickle("FloatStorage", "0", 6), number(0), tuple(6), tuple(1)))
	_, err = readBytes(packed(t, map[string][]byte{"a/data.pkl": pickle, "a/data/0": make([]byte, 1<<20)}, zip.Deflate))
	require.ErrorContains(t, err, "is compressed")
	_, err = readBytes(packed(t, map[string][]byte{"a/data.pkl": pickle, "b/data.pkl": pickle}, zip.Store))
	require.ErrorContains(t, err, `two files named "data.pkl"`)
	_, err = readBytes(packed(t, map[string][]byte{"a/data.pkl": make([]byte, maxPickle+1)}, zip.Store))
	require.ErrorContains(t, err, "more than the limit of 16777216")
	_, err = readBytes(packed(t, nil, zip.Store))
	require.ErrorContains(t, err, `no file "data.pkl"`)
}

// TestMemory: memory is bounded for a hostile file, such as one with a large directory, a pickle of
// containers, one that copies a dict again and again, or a tensor of more elements than fit in
// memory.
func TestMemory(t *testing.T) {
	entry := append([]byte("PK\x01\x02"), make([]byte, 42)...)
	directory := append([]byte("PK\x03\x04"), bytes.Repeat(entry, 500_000)...)
	end := append([]byte("PK\x05\x06"), make([]byte, 18)...)
	binary.LittleEndian.PutUint16(end[8:], 500_000&0xffff)
	binary.LittleEndian.PutUint16(end[10:], 500_000&0xffff)
	binary.LittleEndian.PutUint32(end[12:], uint32(len(directory)-4))
	binary.LittleEndian.PutUint32(end[16:], 4)
	large := "}q\x00(" // a dict of 2,000 entries
	for i := range 2000 {
		large += text(strconv.Itoa(i)) + "N"
	}
	large += "u0"
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"directory":  {append(directory, end...), "its directory has more than the limit"},
		"containers": {archived(t, "\x80\x02"+strings.Repeat("]", 1<<20)+"."), "it has no tensors"},
		"copies":     {archived(t, "\x80\x02"+large+strings.Repeat("ccollections\nOrderedDict\n)Rh\x00b", 5000)+"."), "it has no tensors"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := readBytes(c.file)
		runtime.ReadMemStats(&after)
		require.ErrorContains(t, err, c.want, name)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(512<<20), name)
		t.Logf("%s: %d MiB", name, (after.TotalAlloc-before.TotalAlloc)>>20)
	}
	f, err := readBytes(archived(t, tensorPickle(storagePickle("ByteStorage", "0", 6), number(0), tuple(math.MaxInt/4, 2, 3), tuple(0, 3, 1))))
	require.ErrorContains(t, err, "its storage has 6")
	require.Nil(t, f)
	f, err = readBytes(archived(t, tensorPickle(storagePickle("ByteStorage", "0", 6), number(0), tuple(math.MaxInt/8, 2, 3), tuple(0, 3, 1))))
	require.NoError(t, err)
	r, err := f.Reader("w")
	require.NoError(t, err)
	_, err = io.CopyN(io.Discard, r, 1<<20)
	require.NoError(t, err)
}

// readable checks that each tensor of a file has the number of bytes that it lists.
func readable(t *testing.T, f *File) {
	for _, info := range f.Tensors() {
		r, err := f.Reader(info.Name)
		require.NoError(t, err)
		n, err := io.CopyN(io.Discard, r, min(info.Bytes, 1<<16))
		require.NoError(t, err)
		require.Equal(t, min(info.Bytes, 1<<16), n)
	}
}

// FuzzOpen: no file makes the reader panic, and the tensors of an accepted file can be read.
func FuzzOpen(f *testing.F) {
	files, err := filepath.Glob("testdata/*.pt")
	require.NoError(f, err)
	for _, path := range files {
		b, err := os.ReadFile(path)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := readBytes(b)
		if err != nil {
			require.ErrorIs(t, err, ErrFormat)
			return
		}
		readable(t, file)
	})
}

// FuzzPickle: the same for the pickle of a file.
func FuzzPickle(f *testing.F) {
	float := storagePickle("FloatStorage", "0", 6)
	f.Add([]byte(tensorPickle(float, number(0), tuple(2, 3), tuple(3, 1))))
	f.Add([]byte(tensorPickle(float, number(1), tuple(2, 3, 0), tuple(0, 1, 9))))
	f.Add([]byte("\x80\x02ccollections\nOrderedDict\n)R}" + text("a") + "Nsb."))
	f.Fuzz(func(t *testing.T, pickle []byte) {
		file, err := readBytes(archived(t, string(pickle)))
		if err != nil {
			require.ErrorIs(t, err, ErrFormat)
			return
		}
		readable(t, file)
	})
}

// sparse is a file of zeros that ends with something.
type sparse struct {
	start, end []byte
	size       int64
}

func (s sparse) ReadAt(p []byte, at int64) (int, error) {
	clear(p)
	for i := range p {
		switch k := at + int64(i); {
		case k < int64(len(s.start)):
			p[i] = s.start[k]
		case k >= s.size:
			return i, io.EOF
		case k >= s.size-int64(len(s.end)):
			p[i] = s.end[k-(s.size-int64(len(s.end)))]
		}
	}
	return len(p), nil
}

// TestPromisedFiles: the end of a long file promises more files than a directory can have.
func TestPromisedFiles(t *testing.T) {
	const size = 30 << 30
	end := append([]byte("PK\x06\x06"), make([]byte, 52)...)
	binary.LittleEndian.PutUint64(end[24:], 1<<28)
	binary.LittleEndian.PutUint64(end[32:], 1<<28)
	binary.LittleEndian.PutUint64(end[48:], 4)
	locator := append([]byte("PK\x06\x07"), make([]byte, 16)...)
	binary.LittleEndian.PutUint64(locator[8:], size-98)
	last := append([]byte("PK\x05\x06"), bytes.Repeat([]byte{0xff}, 16)...)
	end = append(append(append(end, locator...), last...), 0, 0)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := read(sparse{[]byte("PK\x03\x04"), end, size}, size)
	runtime.ReadMemStats(&after)
	require.ErrorContains(t, err, "promises 268435456 files")
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20))
}

// TestCloseTwice: the second call does nothing.
func TestCloseTwice(t *testing.T) {
	f, err := Open("testdata/views.pt")
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, f.Close())
}
