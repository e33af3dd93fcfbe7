package recording

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"strconv"

	"github.com/cistern-ml/cistern/internal/budget"
)

// opcode describes an opcode of the pickle machine.
type opcode struct {
	arg  argument
	cost cost
	mark int // how many marks it adds
}

// argument is the form of an opcode's argument.
type argument uint8

const (
	unknown argument = iota // not plain data
	none
	bytes1 // as many bytes as the name says
	bytes2
	bytes4
	bytes8
	length1 // a length of as many bytes as the name says, and the data
	length4
	length8
	frame // a length of 8 bytes, of the following data
)

// cost is the memory of an opcode's result, in bytes: a value in an interface with its slot in a
// container, or a container with its first slots.
type cost int64

const (
	nothing   cost = 0
	memoized  cost = 56
	scalar    cost = 72
	long      cost = 100
	container cost = 160
)

// opcodes are those of plain values in protocols 2 to 5. All others are refused, including those
// that name or call a class.
var opcodes = [256]opcode{
	0x80: {bytes1, nothing, 0}, // PROTO
	0x95: {frame, nothing, 0},  // FRAME
	'.':  {none, nothing, 0},   // STOP
	'(':  {none, nothing, 1},   // MARK
	'0':  {none, nothing, 0},   // POP
	'N':  {none, scalar, 0},    // NONE
	0x88: {none, scalar, 0},    // NEWTRUE
	0x89: {none, scalar, 0},    // NEWFALSE
	'J':  {bytes4, scalar, 0},  // BININT
	'K':  {bytes1, scalar, 0},  // BININT1
	'M':  {bytes2, scalar, 0},  // BININT2
	'G':  {bytes8, scalar, 0},  // BINFLOAT
	0x8a: {length1, long, 0},   // LONG1
	0x8c: {length1, scalar, 0}, // SHORT_BINUNICODE
	'X':  {length4, scalar, 0}, // BINUNICODE
	0x8d: {length8, scalar, 0}, // BINUNICODE8

	'}':  {none, container, 0},  // EMPTY_DICT
	']':  {none, container, 0},  // EMPTY_LIST
	')':  {none, container, 0},  // EMPTY_TUPLE
	0x85: {none, container, 0},  // TUPLE1
	0x86: {none, container, 0},  // TUPLE2
	0x87: {none, container, 0},  // TUPLE3
	'd':  {none, container, -1}, // DICT
	'l':  {none, container, -1}, // LIST
	't':  {none, container, -1}, // TUPLE
	'a':  {none, nothing, 0},    // APPEND
	'e':  {none, nothing, -1},   // APPENDS
	's':  {none, nothing, 0},    // SETITEM
	'u':  {none, nothing, -1},   // SETITEMS
	'q':  {bytes1, memoized, 0}, // BINPUT
	'r':  {bytes4, memoized, 0}, // LONG_BINPUT
	0x94: {none, memoized, 0},   // MEMOIZE
	'h':  {bytes1, scalar, 0},   // BINGET
	'j':  {bytes4, scalar, 0},   // LONG_BINGET
}

// An entry that was read needs entryBytes of memory, and its list of frames listBytes.
const (
	entryBytes = 100 + entryMemory
	listBytes  = 24
)

// scanner passes a pickle on while it reads it, after checking that it consists of plain values
// within the limits. It omits pickle frames, and adds an opcode after each dict that makes the
// unpickler pass the dict to a callback.
type scanner struct {
	in     *bufio.Reader
	budget *budget.Budget
	at     int64 // bytes read
	// for each open mark, the number of values since
	marks  []int
	narrow bool   // an int has 32 bits
	out    []byte // the bytes to pass on
	err    error
}

func newScanner(in *bufio.Reader, b *budget.Budget) *scanner {
	return &scanner{in: in, budget: b, narrow: strconv.IntSize == 32}
}

func (s *scanner) Read(p []byte) (int, error) {
	if len(s.out) == 0 {
		if s.err == nil {
			s.err = s.next()
		}
		if s.err != nil {
			s.out = nil
			return 0, s.err
		}
	}
	n := copy(p, s.out)
	s.out = s.out[n:]
	return n, nil
}

func (s *scanner) ReadByte() (byte, error) {
	var b [1]byte
	_, err := s.Read(b[:])
	return b[0], err
}

// next reads an opcode to pass on.
func (s *scanner) next() error {
	for {
		code, err := s.in.ReadByte()
		if err != nil {
			return truncated(err)
		}
		if err := s.budget.Work(4); err != nil {
			return err
		}
		op := opcodes[code]
		if op.arg == unknown {
			return fmt.Errorf("the pickle has opcode %#x at byte %d, which names a class or is not of protocols 2 to 5: "+
				"a snapshot has plain values only", code, s.at)
		}
		s.out = append(s.out[:0], code)
		if err := s.argument(op.arg); err != nil {
			return fmt.Errorf("the opcode %#x at byte %d: %w", code, s.at, err)
		}
		s.at += int64(len(s.out))
		if err := s.budget.Memory(int64(op.cost)); op.cost != nothing && err != nil {
			return err
		}
		if op.mark != 0 || code == 'a' || code == 's' {
			if err := s.mark(code, op); err != nil {
				return err
			}
		} else if n := len(s.marks); n > 0 && op.cost >= scalar {
			s.marks[n-1]++
		}
		switch code {
		case 0x80:
			if s.out[1] > 5 {
				return fmt.Errorf("the pickle has protocol %d; this reads 2 to 5", s.out[1])
			}
		case 0x95:
			continue
		case 0x8a:
			if s.narrow {
				s.out = widen(s.out)
			}
		case 's', 'u', 'd':
			s.out = append(s.out, 'Q') // BINPERSID
		}
		return nil
	}
}

// mark tracks the marks, and bounds the pairs that one opcode adds to a dict.
func (s *scanner) mark(code byte, op opcode) error {
	n := len(s.marks)
	switch {
	case op.mark > 0:
		if s.marks = append(s.marks, 0); len(s.marks) > maxDepth {
			return errTooMuch("nested values", maxDepth)
		}
	case op.mark < 0 && n > 0:
		values := s.marks[n-1]
		if s.marks = s.marks[:n-1]; (code == 'u' || code == 'd') && values > 2*maxKeys {
			return errTooMuch("keys in a dict", maxKeys)
		}
	// its argument is no longer a value of its own
	case n > 0 && code == 'a':
		s.marks[n-1]--
	case n > 0 && code == 's':
		s.marks[n-1] -= 2
	}
	return nil
}

// widen turns a LONG1 of 33 to 64 bits into one of 72 bits. The unpickler makes a big.Int of such a
// value, and an int of a shorter one, in which it drops bits that an int cannot hold.
func widen(op []byte) []byte {
	value := op[2:]
	if len(value) <= 4 || len(value) > 8 {
		return op
	}
	sign := byte(int8(value[len(value)-1]) >> 7)
	fits := byte(int8(value[3])>>7) == sign
	for _, b := range value[4:] {
		fits = fits && b == sign
	}
	if fits {
		return op
	}
	for len(op) < 2+9 {
		op = append(op, sign)
	}
	op[1] = 9
	return op
}

// argument reads an opcode's argument.
func (s *scanner) argument(arg argument) error {
	size := argumentSizes[arg]
	if err := s.take(size); err != nil || arg < length1 || arg == frame {
		return err
	}
	var wide [8]byte
	copy(wide[:], s.out[1:])
	n := binary.LittleEndian.Uint64(wide[:])
	if n > maxString {
		return errTooMuch("bytes in a string", maxString)
	}
	if err := s.budget.Memory(int64(n)); err != nil {
		return err
	}
	return s.take(int(n))
}

// take reads n bytes.
func (s *scanner) take(n int) error {
	from := len(s.out)
	s.out = append(s.out, make([]byte, n)...)
	_, err := io.ReadFull(s.in, s.out[from:])
	return truncated(err)
}

func truncated(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

var argumentSizes = [...]int{none: 0, bytes1: 1, bytes2: 2, bytes4: 4, bytes8: 8, length1: 1, length4: 4, length8: 8, frame: 8}
