package kept

import (
	"io/fs"
	"syscall"
	"time"
)

// changeTime is when a file, its mode or its name last changed; zero: it is not known.
func changeTime(st fs.FileInfo) time.Time {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return time.Time{}
	}
	return time.Unix(sys.Ctim.Unix())
}
