package torchsnapshot

import (
	"bufio"
	"encoding/binary"
	"io"
	"math"
	"math/bits"
	"strings"
)

// The opcodes of Python's protocol 2 that both torch's reader and the JavaScript of memory_viz
// support.
const (
	opProto     = 0x80
	opStop      = '.'
	opMark      = '('
	opEmptyDict = '}'
	opEmptyList = ']'
	opSetItems  = 'u'
	opAppends   = 'e'
	opTuple2    = 0x86
	opTrue      = 0x88
	opFalse     = 0x89
	opInt       = 'J' // 4 bytes, signed
	opByte      = 'K'
	opLong      = 0x8a // a length in one byte
	opFloat     = 'G'
	opText      = 'X' // a length in 4 bytes
	opPutByte   = 'q'
	opGetByte   = 'h'
	opPut       = 'r' // 4 bytes
	opGet       = 'j'
)

// pickler writes values one after the other. It keeps only the numbers of values that are repeated.
// The writer's first error is kept, and flush returns it.
type pickler struct {
	w     *bufio.Writer
	texts map[string]uint32 // in the reader's memo
	memo  uint32            // values in the reader's memo
}

func newPickler(w io.Writer) *pickler {
	p := &pickler{w: bufio.NewWriterSize(w, 64<<10), texts: make(map[string]uint32)}
	p.w.Write([]byte{opProto, 2})
	return p
}

func (p *pickler) op(code byte) { p.w.WriteByte(code) }

// dict writes the keys and values that f writes.
func (p *pickler) dict(f func()) {
	p.op(opEmptyDict)
	p.op(opMark)
	f()
	p.op(opSetItems)
}

// batch is the number of values of an append: Python's number. The JavaScript reader passes them as
// arguments of one call.
const batch = 1000

// list writes n values.
func (p *pickler) list(n int, f func(i int)) {
	p.op(opEmptyList)
	for i := range n {
		if i%batch == 0 {
			p.op(opMark)
		}
		f(i)
		if i%batch == batch-1 || i == n-1 {
			p.op(opAppends)
		}
	}
}

func (p *pickler) bool(v bool) {
	if v {
		p.op(opTrue)
		return
	}
	p.op(opFalse)
}

func (p *pickler) int(v int64) {
	switch {
	case v >= 0 && v < 256:
		p.w.Write([]byte{opByte, byte(v)})
	case v >= math.MinInt32 && v <= math.MaxInt32:
		p.op(opInt)
		p.four(uint32(v))
	default:
		b := binary.LittleEndian.AppendUint64(nil, uint64(v))
		n := bits.Len64(uint64(max(v, ^v)))/8 + 1 // with a bit for the sign
		p.w.Write([]byte{opLong, byte(n)})
		p.w.Write(b[:n])
	}
}

// uint writes a value that may exceed int64: an address or a handle.
func (p *pickler) uint(v uint64) {
	if v <= math.MaxInt64 {
		p.int(int64(v))
		return
	}
	p.w.Write([]byte{opLong, 9})
	p.w.Write(binary.LittleEndian.AppendUint64(nil, v))
	p.op(0)
}

func (p *pickler) float(v float64) {
	p.op(opFloat)
	p.w.Write(binary.BigEndian.AppendUint64(nil, math.Float64bits(v)))
}

// text writes a text that is probably not repeated.
func (p *pickler) text(s string) {
	s = strings.ToValidUTF8(s, "\uFFFD") // Python accepts nothing else
	p.op(opText)
	p.four(uint32(len(s)))
	p.w.WriteString(s)
}

// name writes a text that is repeated: a key, or a value with few variants.
func (p *pickler) name(s string) {
	if n, ok := p.texts[s]; ok {
		p.get(n)
		return
	}
	p.text(s)
	p.texts[s] = p.put()
}

// put makes the reader remember the last value under the number that it returns.
func (p *pickler) put() uint32 {
	n := p.memo
	p.memo++
	p.numbered(opPutByte, opPut, n)
	return n
}

// get writes a reference to a remembered value.
func (p *pickler) get(n uint32) { p.numbered(opGetByte, opGet, n) }

// numbered writes one of two opcodes with its argument: the first has one byte, the second four.
func (p *pickler) numbered(short, long byte, n uint32) {
	if n < 256 {
		p.w.Write([]byte{short, byte(n)})
		return
	}
	p.op(long)
	p.four(n)
}

func (p *pickler) four(v uint32) { p.w.Write(binary.LittleEndian.AppendUint32(nil, v)) }

// key writes a key; the next value written is its value.
func (p *pickler) key(k string) *pickler {
	p.name(k)
	return p
}

// flush ends the pickle.
func (p *pickler) flush() error {
	p.op(opStop)
	return p.w.Flush()
}
