// Package output writes files that are complete or not there at all, and never over their inputs.
// A symbolic link is not followed, and only a regular file is replaced.
package output

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Check returns an error if name is one of the inputs, the files that the result is made from, or
// if Write or Stream would fail for it, as far as that is known without contents. The input "-" is
// the standard input. The names "" and "-" are not files, and pass.
func Check(name string, inputs ...string) error {
	if name == "" || name == "-" {
		return nil
	}
	for _, input := range inputs {
		if isInput(name, input) {
			return fmt.Errorf("%s is the input %s, which would be overwritten; choose another name", name, input)
		}
	}
	kind, info, err := look(name)
	if err != nil || kind == special || kind == standard {
		return err
	}
	if stdout, err := os.Stdout.Stat(); err == nil && kind == regular && os.SameFile(info, stdout) {
		return fmt.Errorf("%s is the standard output, whose text would be lost; choose another name", name)
	}
	f, err := createPending(name)
	if err != nil {
		return err
	}
	return f.discard()
}

func isInput(name, input string) bool {
	if input != "-" {
		return Same(name, input)
	}
	in, err := os.Stdin.Stat()
	return err == nil && sameAs(name, in)
}

// Same reports whether two names lead to one regular file or, if neither file exists, would do so.
func Same(a, b string) bool {
	info, err := os.Stat(b)
	if err == nil {
		return sameAs(a, info)
	}
	if _, err := os.Stat(a); err == nil || filepath.Base(a) != filepath.Base(b) {
		return false
	}
	dirA, errA := os.Stat(filepath.Dir(a))
	dirB, errB := os.Stat(filepath.Dir(b))
	return errA == nil && errB == nil && os.SameFile(dirA, dirB)
}

func sameAs(name string, file os.FileInfo) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular() && os.SameFile(info, file)
}

// Write calls write for the contents of a file. They go to a new file in the same folder, which is
// renamed to name once it is complete and on disk. So concurrent writers of one name do not mix,
// and after an error an existing file is unchanged. The new file has the permissions of the old
// one. A pipe or a character device is written directly. A program that is killed leaves a file
// whose name begins with a dot.
func Write(name string, write func(io.Writer) error) error {
	f, err := create(name)
	if err != nil {
		return err
	}
	buffer := bufio.NewWriter(f)
	if err = write(buffer); err == nil {
		err = buffer.Flush()
	}
	if err != nil {
		_ = f.discard()
		return err
	}
	return f.commit()
}

// file is an incomplete output.
type file interface {
	io.Writer
	commit() error
	discard() error
}

func create(name string) (file, error) {
	kind, _, err := look(name)
	if err != nil {
		return nil, err
	}
	if kind == special || kind == standard {
		f, err := openSpecial(name, kind)
		return asItIs{f}, err
	}
	return createPending(name)
}

// asItIs is a pipe or a device, which is written directly.
type asItIs struct{ io.WriteCloser }

func (f asItIs) commit() error  { return f.Close() }
func (f asItIs) discard() error { return f.Close() }
