package failtest

import "io"

// ReaderAt returns r with reads that may fail.
func ReaderAt(f *Faults, r io.ReaderAt) io.ReaderAt { return &readerAt{r, f} }

type readerAt struct {
	from   io.ReaderAt
	faults *Faults
}

func (r *readerAt) ReadAt(p []byte, at int64) (int, error) {
	if err := r.faults.call("ReadAt"); err != nil {
		return 0, err
	}
	return r.from.ReadAt(p, at)
}
