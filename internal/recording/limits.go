package recording

import (
	"errors"
	"fmt"
	"io"
	"math"
)

// Limits bound what is read. The zero value of each field stands for its default.
type Limits struct {
	Bytes   int64 // of a file, decompressed; default 1 GiB
	Records int   // entries, and final blocks; default 2 million; a pickle may need 400 bytes of memory for each
	Depth   int   // of nested values; default 64
	String  int   // bytes of one string; default 1 MiB
	// Details asks for times, labels and stacks, too.
	Details bool
}

// maxKeys bounds the keys of a dict: each new one is compared with all others.
const maxKeys = 4096

var errTooManyKeys = fmt.Errorf("%w: a dict with more than %d keys, where a snapshot has a few dozen", ErrLimit, maxKeys)

// Default limits.
const (
	defaultBytes   = 1 << 30
	defaultRecords = 1 << 21
	defaultDepth   = 64
	defaultString  = 1 << 20
)

func (l Limits) withDefaults() Limits {
	if l.Bytes <= 0 {
		l.Bytes = defaultBytes
	}
	if l.Records <= 0 {
		l.Records = defaultRecords
	}
	l.Records = min(l.Records, math.MaxInt32/2) // steps number entries with 32 bits
	if l.Depth <= 0 {
		l.Depth = defaultDepth
	}
	if l.String <= 0 {
		l.String = defaultString
	}
	return l
}

// checkStrings is an error if one of them is too long.
func (l Limits) checkStrings(list ...string) error {
	for _, text := range list {
		if len(text) > l.String {
			return tooMuch("bytes in a string", int64(l.String))
		}
	}
	return nil
}

// ErrLimit is the class of errors about files that exceed a limit, for errors.Is.
var ErrLimit = errors.New("the file is too large")

func tooMuch(what string, limit int64) error {
	return fmt.Errorf("%w: more than %d %s; raise the limit if you trust it", ErrLimit, limit, what)
}

// bounded fails once more than left bytes were read.
type bounded struct {
	r           io.Reader
	left, limit int64
}

func newBounded(r io.Reader, limit int64) *bounded { return &bounded{r: r, left: limit, limit: limit} }

func (b *bounded) Read(p []byte) (int, error) {
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, tooMuch("bytes when decompressed", b.limit)
	}
	return n, err
}
