//go:build !windows

package output

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"github.com/google/renameio/v2"
)

// pending is a temporary file that will replace another one.
type pending struct {
	*renameio.PendingFile
	folder string
}

func createPending(name string) (file, error) {
	folder := filepath.Dir(name)
	f, err := renameio.NewPendingFile(name, renameio.WithTempDir(folder), renameio.WithPermissions(0o666), renameio.WithExistingPermissions())
	return pending{f, folder}, err
}

func (p pending) commit() error {
	err := p.CloseAtomicallyReplace()
	_ = p.Cleanup() // a no-op after success
	if err != nil {
		return err
	}
	return syncFolder(p.folder)
}

func (p pending) discard() error { return p.Cleanup() }

// syncFolder flushes the folder's entries to disk if the file system and the permissions allow it.
func syncFolder(name string) error {
	folder, err := os.Open(name)
	if errors.Is(err, os.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	if err = folder.Sync(); errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		// the new file exists, but this file system cannot flush folders
		err = nil
	}
	return errors.Join(err, folder.Close())
}
