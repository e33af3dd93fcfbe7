package output

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// Stream opens a file that is read while the program writes it, or after the program was killed. It
// replaces a file of that name by a new one with the same permissions, so that the streams of two
// programs don't mix, unless appends, which goes on with the file. A pipe or a character device is
// written to as it is.
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

// stream is a regular file, which is on the disk when it is closed.
type stream struct{ *os.File }

func (s stream) Close() error { return errors.Join(s.Sync(), s.File.Close()) }

// reopen opens a file to append to it, unless the name leads to another one by now.
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
