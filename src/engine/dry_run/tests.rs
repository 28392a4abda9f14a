use super::native::{Opened, version};

#[test]
fn placeholder() {
    assert!(!version().is_empty());
    assert!(Opened::open(std::path::Path::new("/nonexistent"), (false, 0, 0)).is_err());
}
