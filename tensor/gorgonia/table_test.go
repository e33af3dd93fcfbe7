package gorgonia

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
)

func TestTable(t *testing.T) {
	var all table
	big := piece(make([]byte, 3<<pageBits))
	all.insert(big)
	addr := big.Uintptr()
	for _, at := range []uintptr{0, 1, 1 << pageBits, 2<<pageBits + 5, 3<<pageBits - 1} {
		assert.Same(t, big, all.find(addr+at), "%d bytes into it", at)
	}
	assert.Nil(t, all.find(addr+3<<pageBits), "one behind its end")
	assert.Nil(t, all.find(addr-1))
	parts := unsafe.Slice(unsafe.SliceData(big.data), len(big.data))
	all.remove(big)
	for _, at := range []uintptr{0, 1 << pageBits, 3<<pageBits - 1} {
		assert.Nil(t, all.find(addr+at), "removed, %d bytes into it", at)
	}
	first, second := piece(parts[:512]), piece(parts[512:1024])
	all.insert(second)
	all.insert(first)
	assert.Same(t, first, all.find(addr+511))
	assert.Same(t, second, all.find(addr+512))
	all.remove(second)
	assert.Nil(t, all.find(addr+512), "one behind its end, on a page that has memory")
}

func piece(data []byte) *memory {
	return &memory{addr: address(data), size: int64(len(data)), data: data}
}
