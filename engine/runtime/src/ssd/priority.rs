//! How the tier's threads yield to those that compute.
#![allow(unsafe_code)]

/// Makes the calling thread one of the background: for the processor and, where the system knows such a thing, for the
/// disk. What the system refuses is left as it is.
pub(super) fn lower() {
    system::lower();
}

/// Makes the calling thread yield the processor to those that compute, though somebody waits for what it reads.
pub(super) fn lower_reader() {
    system::lower_reader();
}

#[cfg(target_os = "linux")]
mod system {
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
}

#[cfg(target_os = "macos")]
mod system {
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
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
mod system {
    pub(super) fn lower() {}

    pub(super) fn lower_reader() {}
}
