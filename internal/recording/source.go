package recording

import (
	"io"

	"github.com/cistern-ml/cistern/internal/budget"
)

// source counts the bytes of a file before it is decompressed.
type source struct {
	io.Reader
	bytes int64
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	s.bytes += int64(n)
	return n, err
}

// plain charges for the bytes that are read after decompression.
type plain struct {
	io.Reader
	of             *source
	bytes, counted int64 // counted is the part of bytes that has raised the budget
	budget         *budget.Budget
}

func (p *plain) Read(to []byte) (int, error) {
	n, err := p.Reader.Read(to)
	p.bytes += int64(n)
	now := min(p.bytes, p.of.bytes*budget.MaxRatio)
	p.budget.Grow(now - p.counted)
	p.counted = now
	if err := p.budget.Work(int64(n)); err != nil {
		return 0, err
	}
	return n, err
}
