package output

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// kind is the kind of file at a name.
type kind int

const (
	missing  kind = iota
	regular       // a file that the user may write
	special       // a pipe or a character device, or a link to one
	standard      // a link to the standard output, such as /dev/stdout
)

// look returns the kind of file at a name, or the reason why it cannot be written. It opens no
// pipe, because that may block.
func look(name string) (kind, os.FileInfo, error) {
	info, err := os.Lstat(name)
	if err != nil {
		if folder, err := os.Stat(filepath.Dir(name)); err != nil || !folder.IsDir() {
			return 0, nil, fmt.Errorf("%s can't be written: there is no folder %s: %w", name, filepath.Dir(name), fs.ErrNotExist)
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return missing, nil, err
	}
	if info.Mode().Type() == fs.ModeSymlink {
		if info, err = os.Stat(name); err == nil {
			if stdout, err := os.Stdout.Stat(); err == nil && os.SameFile(info, stdout) {
				return standard, info, nil
			}
		}
		if err != nil || info.Mode().IsRegular() {
			return 0, nil, fmt.Errorf("%s can't be written: it is a symbolic link, which is not followed; give the name of the file itself", name)
		}
	}
	switch mode := info.Mode(); {
	case mode.IsRegular() && mounted(name):
		return 0, nil, fmt.Errorf("%s can't be written: it is a mount point, which can't be replaced; mount its folder", name)
	case mode.IsRegular():
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			return 0, nil, err
		}
		return regular, info, f.Close()
	case mode&(fs.ModeNamedPipe|fs.ModeCharDevice) != 0:
		return special, info, nil
	case mode.IsDir():
		return 0, nil, fmt.Errorf("%s can't be written: it is a directory", name)
	default:
		return 0, nil, fmt.Errorf("%s can't be written: it is not a file, but %v", name, mode)
	}
}

// IsStandard reports whether the name is a link to the standard output, such as /dev/stdout.
func IsStandard(name string) bool {
	kind, _, _ := look(name)
	return kind == standard
}

// openSpecial opens a pipe or device, which is written without a temporary file.
func openSpecial(name string, kind kind) (io.WriteCloser, error) {
	// opening the file again would write from its start
	if kind == standard {
		return stdout{}, nil
	}
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return nil, err // not an interface with a nil file
	}
	return f, nil
}

// stdout is the standard output, which stays open.
type stdout struct{}

func (stdout) Write(p []byte) (int, error) { return os.Stdout.Write(p) }
func (stdout) Close() error                { return nil }
