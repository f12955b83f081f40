//! How the tier's threads yield to those that compute.
#![allow(unsafe_code)]

use std::fs::File;

/// Makes the calling thread one of the background: for the processor and, where the system knows such a thing, for the
/// disk. What the system refuses is left as it is.
pub(super) fn lower() {
    system::lower();
}

/// Makes the calling thread yield the processor to those that compute, though somebody waits for what it reads.
pub(super) fn lower_reader() {
    system::lower_reader();
}

/// Asks the system to send a range of a file to the disk, without waiting for it.
pub(super) fn start_writing(file: &File, offset: u64, bytes: u64) {
    system::start_writing(file, offset, bytes);
}

#[cfg(target_os = "linux")]
mod system {
    use std::fs::File;
    use std::os::fd::AsRawFd as _;

    const IOPRIO_WHO_PROCESS: libc::c_long = 1;
    /// Best effort, the last of its eight levels. The idle class could wait for ever on a busy disk, and a flush with it.
    const IOPRIO_LOWEST: libc::c_long = (2 << 13) | 7;

    pub(super) fn lower() {
        nice(10);
        // SAFETY: the call takes three numbers and touches no memory; 0 means the calling thread.
        unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0 as libc::c_long, IOPRIO_LOWEST) };
    }

    pub(super) fn lower_reader() {
        nice(5);
    }

    /// On Linux the niceness is each thread's own, whatever POSIX says.
    fn nice(level: libc::c_int) {
        // SAFETY: the call takes three numbers and touches no memory; 0 means the calling thread.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, level) };
    }

    pub(super) fn start_writing(file: &File, offset: u64, bytes: u64) {
        let (Ok(offset), Ok(bytes)) = (i64::try_from(offset), i64::try_from(bytes)) else { return };
        // SAFETY: the descriptor is open as long as `file` is borrowed, and the call touches no memory.
        unsafe { libc::sync_file_range(file.as_raw_fd(), offset, bytes, libc::SYNC_FILE_RANGE_WRITE) };
    }
}

#[cfg(target_os = "macos")]
mod system {
    use std::fs::File;

    const IOPOL_TYPE_DISK: libc::c_int = 0;
    const IOPOL_SCOPE_THREAD: libc::c_int = 1;
    const IOPOL_UTILITY: libc::c_int = 4;

    unsafe extern "C" {
        fn setiopolicy_np(iotype: libc::c_int, scope: libc::c_int, policy: libc::c_int) -> libc::c_int;
    }

    pub(super) fn lower() {
        // SAFETY: both calls take numbers only and act on the calling thread.
        unsafe {
            libc::pthread_set_qos_class_self_np(libc::qos_class_t::QOS_CLASS_UTILITY, 0);
            setiopolicy_np(IOPOL_TYPE_DISK, IOPOL_SCOPE_THREAD, IOPOL_UTILITY);
        }
    }

    pub(super) fn lower_reader() {
        // SAFETY: the call takes numbers only and acts on the calling thread.
        unsafe { libc::pthread_set_qos_class_self_np(libc::qos_class_t::QOS_CLASS_USER_INITIATED, 0) };
    }

    pub(super) fn start_writing(_: &File, _: u64, _: u64) {}
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
mod system {
    use std::fs::File;

    pub(super) fn lower() {}

    pub(super) fn lower_reader() {}

    pub(super) fn start_writing(_: &File, _: u64, _: u64) {}
}
