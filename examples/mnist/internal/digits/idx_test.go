package digits

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// idx is a file in the idx format.
func idx(magic uint32, dims []uint32, data ...byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, magic)
	for _, d := range dims {
		b = binary.BigEndian.AppendUint32(b, d)
	}
	return append(b, data...)
}

func pictures(n int) []byte {
	return idx(imageFile.magic, []uint32{uint32(n), Side, Side}, make([]byte, n*Pixels)...)
}

func labelsOf(labels ...byte) []byte {
	return idx(labelFile.magic, []uint32{uint32(len(labels))}, labels...)
}

func zipped(b []byte) []byte {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, _ = z.Write(b)
	_ = z.Close()
	return out.Bytes()
}

func TestDecodeIDX(t *testing.T) {
	for name, file := range map[string][]byte{"plain": labelsOf(3, 1, 4), "gzip": zipped(labelsOf(3, 1, 4))} {
		n, data, err := decodeIDX(bytes.NewReader(file), labelFile, maxImages)
		require.NoError(t, err, name)
		assert.Equal(t, 3, n)
		assert.Equal(t, []byte{3, 1, 4}, data)
	}
}

func TestBrokenIDX(t *testing.T) {
	noise := make([]byte, 1000)
	for i := range noise {
		noise[i] = byte(rand.IntN(256))
	}
	flipped := zipped(pictures(2))
	flipped[len(flipped)-6] ^= 1 // in the checksum
	for name, c := range map[string]struct {
		file []byte
		kind idxKind
		want string
	}{
		"empty":             {nil, labelFile, "ends in the header, after 0 bytes: want 8"},
		"in the header":     {pictures(1)[:15], imageFile, "ends in the header, after 15 bytes: want 16"},
		"labels as images":  {labelsOf(make([]byte, 20)...), imageFile, "starts with 0x00000801, a file of labels: want 0x00000803"},
		"images as labels":  {pictures(1), labelFile, "starts with 0x00000803, a file of images: want 0x00000801"},
		"web page":          {[]byte("<!DOCTYPE html>......"), imageFile, "perhaps a web page"},
		"zip":               {[]byte("PK\x03\x04................"), imageFile, "a zip archive"},
		"wrong size":        {idx(imageFile.magic, []uint32{1, 32, 32}, make([]byte, 1024)...), imageFile, "dimension 0 of a record is 32: want 28"},
		"none":              {pictures(0), imageFile, "says 0 records: want 1 to 262,144"},
		"too many":          {idx(labelFile.magic, []uint32{1 << 31}, 1), labelFile, "says 2,147,483,648 records"},
		"truncated":         {pictures(3)[:16+2*Pixels+5], imageFile, "ends after 1573 bytes of images: want 2352 (3 records of 784)"},
		"trailing":          {append(pictures(1), 0), imageFile, "more follows the 1 records"},
		"zipped trailing":   {zipped(append(labelsOf(1, 2), 0)), labelFile, "more follows the 2 records"},
		"after the gzip":    {append(zipped(labelsOf(1, 2)), "junk"...), labelFile, "damaged"},
		"zipped truncated":  {zipped(labelsOf(noise...))[:500], labelFile, "unexpected EOF: the file is damaged"},
		"zipped no end":     {zipped(labelsOf(1, 2, 3))[:20], labelFile, "unexpected EOF: the file is damaged"},
		"zipped checksum":   {flipped, imageFile, "invalid checksum: the file is damaged"},
		"only gzip's magic": {[]byte{0x1f, 0x8b}, imageFile, "damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := decodeIDX(bytes.NewReader(c.file), c.kind, maxImages)
			assert.ErrorContains(t, err, c.want)

			path := filepath.Join(t.TempDir(), "file")
			require.NoError(t, os.WriteFile(path, c.file, 0o600))
			_, _, err = readIDX(path, c.kind, maxImages)
			assert.ErrorContains(t, err, "mnist: "+path+": ")
			assert.ErrorContains(t, err, c.want)
		})
	}
}

// A small file can't make the reader allocate much memory: neither by its header nor by its
// decompressed size.
func TestIDXAllocatesAsItReads(t *testing.T) {
	claims := idx(imageFile.magic, []uint32{maxImages, Side, Side}, make([]byte, 100)...)
	bomb := zipped(append(labelsOf(1, 2, 3), make([]byte, 32<<20)...))
	for name, c := range map[string]struct {
		file []byte
		kind idxKind
	}{"header": {claims, imageFile}, "gzip bomb": {bomb, labelFile}} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, _, err := decodeIDX(bytes.NewReader(c.file), c.kind, maxImages)
			runtime.ReadMemStats(&after)
			require.Error(t, err)
			assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20))
		})
	}
}

func TestReadIDXOfWhatIsNoFile(t *testing.T) {
	_, _, err := readIDX(t.TempDir(), imageFile, maxImages)
	assert.ErrorContains(t, err, "is not a file")
	_, _, err = readIDX(filepath.Join(t.TempDir(), "none"), imageFile, maxImages)
	assert.ErrorIs(t, err, os.ErrNotExist)
}

func FuzzDecodeIDX(f *testing.F) {
	f.Add(pictures(2), true)
	f.Add(zipped(pictures(2)), true)
	f.Add(labelsOf(1, 2, 3), false)
	f.Add(zipped(labelsOf(1, 2, 3)), false)
	f.Add([]byte{0x1f, 0x8b, 8}, false)
	f.Fuzz(func(t *testing.T, file []byte, images bool) {
		kind := labelFile
		if images {
			kind = imageFile
		}
		const limit = 1 << 10
		n, data, err := decodeIDX(bytes.NewReader(file), kind, limit)
		if err != nil {
			assert.NotEmpty(t, err.Error())
			assert.Nil(t, data)
			return
		}
		record := 1
		for _, d := range kind.record {
			record *= d
		}
		require.True(t, n > 0 && n <= limit)
		require.Len(t, data, n*record)
		// Data that was read and is written again is the file.
		dims := []uint32{uint32(n)}
		for _, d := range kind.record {
			dims = append(dims, uint32(d))
		}
		again := idx(kind.magic, dims, data...)
		if !bytes.HasPrefix(file, []byte{0x1f, 0x8b}) {
			require.Equal(t, file, again)
		}
		m, same, err := decodeIDX(bytes.NewReader(zipped(again)), kind, limit)
		require.NoError(t, err)
		require.Equal(t, n, m)
		require.Equal(t, data, same)
	})
}
