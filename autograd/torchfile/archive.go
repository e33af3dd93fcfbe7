package torchfile

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
)

// archive is a zip archive of uncompressed files in one folder.
type archive struct {
	r         io.ReaderAt
	size      int64
	files     map[string]*zip.File // by their names in the folder
	bigEndian bool
}

func openArchive(r io.ReaderAt, size int64) (*archive, error) {
	var start [16]byte
	if n, err := r.ReadAt(start[:], 0); err != nil && err != io.EOF {
		return nil, err
	} else if !bytes.HasPrefix(start[:n], []byte("PK")) {
		return nil, formatError("%s", notZip(start[:n]))
	}
	if err := checkRecords(r, size); err != nil {
		return nil, err
	}
	b := &bounded{r: r, left: maxDirectory}
	z, err := zip.NewReader(b, size)
	switch {
	case b.err != nil:
		return nil, b.err
	case err != nil:
		return nil, formatError("the zip archive: %v", err)
	}
	a := &archive{r: r, size: size, files: map[string]*zip.File{}}
	for _, f := range z.File {
		_, name, _ := strings.Cut(f.Name, "/")
		if a.files[name] != nil && name != "" {
			return nil, formatError("the archive has two files named %q", name)
		}
		a.files[name] = f
	}
	if a.files["constants.pkl"] != nil {
		return nil, formatError("it is a TorchScript program; in Python: torch.save(torch.jit.load(path).state_dict(), path)")
	}
	if a.files["byteorder"] != nil {
		order, err := a.read("byteorder", 16)
		if err != nil {
			return nil, err
		}
		if a.bigEndian = string(order) == "big"; !a.bigEndian && string(order) != "little" {
			return nil, formatError("its byteorder is %q: want little or big", order)
		}
	}
	return a, nil
}

// checkRecords refuses an archive whose end record has a count of files above that of the largest
// directory allowed, because package zip allocates a list of that length before it reads the
// directory. Only the records of 64 bits can have such a count (APPNOTE.TXT of PKWARE, 4.3.14 to
// 4.3.16).
func checkRecords(r io.ReaderAt, size int64) error {
	tail := make([]byte, min(size, 1<<16+42))
	if _, err := r.ReadAt(tail, size-int64(len(tail))); err != nil && err != io.EOF {
		return err
	}
	for i := len(tail) - 20; i >= 0; i-- {
		// the locator of the 64-bit end record
		if !bytes.HasPrefix(tail[i:], []byte("PK\x06\x07")) {
			continue
		}
		var end [40]byte
		if at := binary.LittleEndian.Uint64(tail[i+8:]); at > uint64(size) {
			continue
		} else if _, err := r.ReadAt(end[:], int64(at)); err != nil && err != io.EOF {
			return err
		}
		if n := binary.LittleEndian.Uint64(end[32:]); bytes.HasPrefix(end[:], []byte("PK\x06\x06")) && n > maxDirectory/46 {
			return formatError("its directory promises %d files, and the limit of %d bytes holds at most %d", n, maxDirectory, maxDirectory/46)
		}
	}
	return nil
}

// notZip returns the error text for a file that is not a zip archive and begins with start.
func notZip(start []byte) string {
	if bytes.HasPrefix(start, []byte("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19")) {
		return "it has the format before PyTorch 1.6; in Python: torch.save(torch.load(path), path)"
	}
	return "it is not a zip archive"
}

// section returns the bytes of a file of the archive.
func (a *archive) section(name string) (*io.SectionReader, error) {
	f := a.files[name]
	if f == nil {
		return nil, formatError("the archive has no file %q", name)
	}
	n := f.UncompressedSize64
	if f.Method != zip.Store || f.CompressedSize64 != n {
		return nil, formatError("%q is compressed, which torch.save does not do", f.Name)
	}
	from, err := f.DataOffset()
	if err != nil {
		return nil, fmt.Errorf("%w: %q: %w", ErrFormat, f.Name, err)
	}
	if from < 0 || from > a.size || n > uint64(a.size-from) {
		return nil, formatError("%q has %d bytes from byte %d on, and the file ends at %d: was it cut off?", f.Name, n, from, a.size)
	}
	return io.NewSectionReader(a.r, from, int64(n)), nil
}

// read reads a small file of the archive.
func (a *archive) read(name string, most int64) ([]byte, error) {
	s, err := a.section(name)
	if err != nil {
		return nil, err
	}
	if s.Size() > most {
		return nil, formatError("%q has %d bytes, more than the limit of %d", name, s.Size(), most)
	}
	text := make([]byte, s.Size())
	if _, err := io.ReadFull(s, text); err != nil {
		return nil, fmt.Errorf("reading %q: %w", name, err)
	}
	return text, nil
}

// bounded limits the bytes that are read, because a directory in memory is several times as large.
// It keeps the first error of a read, because package zip may report it as a wrong format.
type bounded struct {
	r    io.ReaderAt
	left int64
	err  error
}

func (b *bounded) ReadAt(p []byte, at int64) (n int, err error) {
	if b.left -= int64(len(p)); b.left < 0 {
		err = formatError("its directory has more than the limit of %d bytes", maxDirectory)
	} else {
		n, err = b.r.ReadAt(p, at)
	}
	if b.err == nil && err != io.EOF {
		b.err = err
	}
	return n, err
}
