package output

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// Stream opens a file that can be read while the program writes it, or after the program was
// killed. It replaces an existing file by a new one with the same permissions, so that the streams
// of two programs do not mix. With appends it appends to the existing file instead. A pipe or a
// character device is written directly.
func Stream(name string, appends bool) (io.WriteCloser, error) {
	kind, old, err := look(name)
	if err != nil {
		return nil, err
	}
	permissions := os.FileMode(0o666)
	switch {
	case kind == special || kind == standard:
		return openSpecial(name, kind)
	case kind == regular && appends:
		return reopen(name, old)
	case kind == regular:
		permissions = old.Mode().Perm()
		if err := os.Remove(name); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, permissions)
	if err != nil {
		return nil, err
	}
	return stream{f}, nil
}

// stream is a regular file that is flushed to disk when it is closed.
type stream struct{ *os.File }

func (s stream) Close() error { return errors.Join(s.Sync(), s.File.Close()) }

// reopen opens a file for appending, unless the name now belongs to another file.
func reopen(name string, old os.FileInfo) (io.WriteCloser, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return nil, err
	}
	if now, err := f.Stat(); err != nil || !os.SameFile(old, now) {
		_ = f.Close()
		return nil, fmt.Errorf("%s can't be written: it was replaced meanwhile", name)
	}
	return stream{f}, nil
}
