package output

import (
	"errors"
	"os"
	"path/filepath"
)

// pending is a file beside the one that it is going to replace. Package renameio has none for Windows.
type pending struct {
	*os.File
	name string
}

func createPending(name string) (file, error) {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name))
	return pending{f, name}, err
}

func (p pending) commit() error {
	if err := errors.Join(p.Sync(), p.Close()); err != nil {
		return errors.Join(err, os.Remove(p.Name()))
	}
	return os.Rename(p.Name(), p.name)
}

func (p pending) discard() error { return errors.Join(p.Close(), os.Remove(p.Name())) }
