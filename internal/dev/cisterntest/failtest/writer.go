package failtest

import (
	"fmt"
	"io"
)

// Writer returns w with writes that may fail, or be short.
func Writer(f *Faults, w io.Writer) io.Writer { return &writer{w, f} }

type writer struct {
	to     io.Writer
	faults *Faults
}

func (w *writer) Write(p []byte) (int, error) {
	if kind, fails := w.faults.at("Write", Short); fails && kind == Short {
		n, err := w.to.Write(p[:len(p)/2])
		if err == nil {
			err = fmt.Errorf("Write: %w", io.ErrShortWrite)
		}
		return n, err
	}
	if err := w.faults.call("Write"); err != nil {
		return 0, err
	}
	return w.to.Write(p)
}
