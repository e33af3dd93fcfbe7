package failtest

import (
	"fmt"
	"io"
)

// Writer writes to w, and may fail.
func (f *Faults) Writer(w io.Writer) io.Writer { return &writer{w, f} }

type writer struct {
	to     io.Writer
	faults *Faults
}

func (w *writer) Write(p []byte) (n int, err error) {
	switch kind, fails := w.faults.at("Write", Failed, Short, Ended); {
	case fails && kind == Failed:
		return 0, fmt.Errorf("Write: %w", ErrFailed)
	case fails && kind == Short:
		n, err = w.to.Write(p[:len(p)/2])
		if err == nil {
			err = fmt.Errorf("Write: %w", ErrFailed)
		}
		return n, err
	}
	return w.to.Write(p)
}
