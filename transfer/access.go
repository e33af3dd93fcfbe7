package transfer

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Host access to a buffer by offset, for bytes and for little-endian words, aligned or not. Each
// call checks that no copy is in flight. The check stays valid during the access, because the
// buffer's bytes belong to one goroutine at a time.

// at returns the memory of [offset, offset+bytes) if the host may touch it.
func (b Buffer) at(call string, offset, bytes int64) ([]byte, error) {
	if err := b.Check(); err != nil {
		return nil, err
	}
	if err := checkRange(call, b, offset, bytes, b.bytes); err != nil {
		return nil, err
	}
	return b.memory()[offset : offset+bytes], nil
}

// ReadAt copies from the buffer's bytes at offset to dst (io.ReaderAt): past the end it reads the
// bytes that exist and returns io.EOF. An offset outside of the buffer wraps [ErrRange]; a buffer
// that is in flight or released is an error, as for [Buffer.Check]. To read all of dst or nothing,
// use [GetWords] with bytes.
func (b Buffer) ReadAt(dst []byte, offset int64) (n int, err error) {
	n = len(dst)
	if left := b.bytes - offset; offset >= 0 && left >= 0 && int64(n) > left {
		n, err = int(left), io.EOF
	}
	src, atErr := b.at("ReadAt", offset, int64(n))
	if atErr != nil {
		return 0, atErr
	}
	return copy(dst, src), err
}

// WriteAt copies src to the buffer's bytes at offset (io.WriterAt). If src does not fit it writes
// nothing, and the error wraps [ErrRange]. A buffer that is in flight or released is an error, as
// for [Buffer.Check].
func (b Buffer) WriteAt(src []byte, offset int64) (int, error) {
	dst, err := b.at("WriteAt", offset, int64(len(src)))
	if err != nil {
		return 0, err
	}
	return copy(dst, src), nil
}

// Zero sets bytes bytes at offset to 0. Errors are those of [Buffer.WriteAt].
func (b Buffer) Zero(offset, bytes int64) error {
	dst, err := b.at("Zero", offset, bytes)
	if err == nil {
		clear(dst)
	}
	return err
}

// Word is the constraint on words that a buffer stores in little-endian order; bytes have no order.
type Word interface {
	uint8 | uint16 | uint32 | uint64
}

// PutWords writes words at offset, in bytes, each in little-endian order on any host. Errors are
// those of [Buffer.WriteAt].
func PutWords[T Word](b Buffer, offset int64, words []T) error {
	dst, err := b.at("PutWords", offset, int64(binary.Size(words)))
	if err != nil {
		return err
	}
	return encode(dst, words)
}

// GetWords fills words with the little-endian words at offset, in bytes. On an error it changes
// none of them. Errors are those of [Buffer.WriteAt].
func GetWords[T Word](b Buffer, offset int64, words []T) error {
	src, err := b.at("GetWords", offset, int64(binary.Size(words)))
	if err != nil {
		return err
	}
	if _, err := binary.Decode(src, binary.LittleEndian, words); err != nil {
		return fmt.Errorf("transfer: GetWords: %w", err)
	}
	return nil
}

// encode writes words in little-endian order.
func encode[T Word](dst []byte, words []T) error {
	if _, err := binary.Encode(dst, binary.LittleEndian, words); err != nil {
		return fmt.Errorf("transfer: writing %d words: %w", len(words), err)
	}
	return nil
}
